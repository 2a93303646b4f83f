"""The whole product, used for hours: sessions suspended, resumed, compared.

``python -m soak`` starts the demo's stack (``demo/stack.py``): the real Hub, proxy,
service, the agent, CRIU and a store. Several users take turns with the animals of
:mod:`soak.zoo`, each a session that holds something which is hard to save. The same
session is suspended and resumed again and again, and asked each time for a digest of
what it holds. Parts of the product are killed meanwhile, as a seed says.
"""
