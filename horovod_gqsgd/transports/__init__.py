"""Transports: the collectives that payloads travel by, a module for each library that has them."""
