"""HTTP between our own programs, over unix sockets and TCP.

``client`` has a time limit for every call and turns failures into our own errors;
``server`` is tornado's, protected against callers that never finish their request.
"""
