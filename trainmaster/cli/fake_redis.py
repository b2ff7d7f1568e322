"""A stand-in for a Redis server, for machines without one: ``python -m trainmaster.cli.fake_redis PORT``."""

import signal
import sys
import threading


def main() -> None:
    """Serve until SIGTERM."""
    from fakeredis import TcpFakeServer

    TcpFakeServer.allow_reuse_address = True
    server = TcpFakeServer(("127.0.0.1", int(sys.argv[1])), server_type="redis")
    server.daemon_threads = True
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever(poll_interval=0.2)


if __name__ == "__main__":
    main()
