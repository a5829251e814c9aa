"""How the viewer's server reads requests."""

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class Protocol(H11Protocol):
    """Uvicorn's, but it hangs up on bytes that are no request while an answer is on its way.

    Uvicorn would answer them too, which HTTP/1.1 does not allow there, and print a traceback.
    """

    def handle_events(self) -> None:
        try:
            super().handle_events()
        except h11.LocalProtocolError:
            self.transport.close()
