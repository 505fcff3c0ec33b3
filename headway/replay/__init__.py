"""A trace under several policies in virtual time: what each of them would have cost whom."""
