"""Model pairs: a recipient, its donors, their tokenizer and the map of their components."""
