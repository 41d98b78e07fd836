"""Hosts made of network namespaces on one machine, and the stock launchers across them."""
