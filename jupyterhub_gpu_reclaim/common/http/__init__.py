"""HTTP between our own programs, over unix sockets and TCP.

``client`` has a time limit for every call and turns what goes wrong into our own
errors; ``server`` is tornado's, made safe against callers that never finish their
request.
"""
