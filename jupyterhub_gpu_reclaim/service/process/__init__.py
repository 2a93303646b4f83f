"""The service as a program: supervised, with a stand-in while it starts or fails.

The supervisor holds the address for the Hub's whole life; the service behind it may
start
slowly, fail or be replaced without the Hub ending.
"""
