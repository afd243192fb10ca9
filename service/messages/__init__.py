"""Anthropic's Messages: what a client may ask, as a chat of ours, and what the model said, as blocks and events."""
