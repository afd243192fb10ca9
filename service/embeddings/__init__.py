"""Vectors of texts, as OpenAI's embeddings: what may be asked, and how it is answered."""
