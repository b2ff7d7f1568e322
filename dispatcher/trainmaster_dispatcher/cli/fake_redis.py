"""A stand-in for a Redis server, for machines without one: ``python -m trainmaster_dispatcher.cli.fake_redis PORT``."""

import signal
import sys
import threading


def main() -> None:
    """Serve until SIGTERM."""
    from fakeredis import TcpFakeServer

    # Until it serves, it just ends: whoever sees the port open may stop it at once.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    TcpFakeServer.allow_reuse_address = True
    server = TcpFakeServer(("127.0.0.1", int(sys.argv[1])), server_type="redis")
    server.daemon_threads = True
    # As Redis does: otherwise a message that follows another one waits up to 40 ms for the receiver's acknowledgement.
    server.RequestHandlerClass.disable_nagle_algorithm = True  # type: ignore[attr-defined]
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever(poll_interval=0.2)


if __name__ == "__main__":
    main()
