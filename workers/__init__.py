"""Processes that do the work: media decoding and models. Never imports service."""
