"""OpenAI's Responses: what may be asked, as a chat of ours; an answer's items and events; those kept on disk."""
