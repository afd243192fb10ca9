"""What a client may ask of the language model, and who it is. No HTTP in it but the names of two headers."""
