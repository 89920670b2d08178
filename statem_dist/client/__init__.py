"""Clients of the REST service: one description of every call, carried out by a blocking and an asynchronous driver.

Nothing here touches a store. ``calls`` describes what can be asked as values, ``tries`` and ``listening`` decide what
follows from an answer or the lack of one, and only the transports talk to a socket.
"""
