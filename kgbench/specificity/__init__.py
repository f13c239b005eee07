"""What a graft moves besides the facts that it is meant for."""
