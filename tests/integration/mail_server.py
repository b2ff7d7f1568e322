"""A mail server on this machine, over real TCP: keeps what came, refuses recipients and messages when told to."""

import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, Self

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from trainmaster_dispatcher.cli.embedded import free_port


@dataclass
class Mail:
    """A message that was accepted, or refused with ``answer``."""

    sender: str
    recipients: list[str]
    content: bytes
    answer: str
    is_tls: bool

    @property
    def message(self) -> EmailMessage:
        message = message_from_bytes(self.content, policy=policy.default)
        assert isinstance(message, EmailMessage)
        return message

    @property
    def subject(self) -> str:
        return str(self.message["Subject"])

    @property
    def text(self) -> str:
        body = self.message.get_body(("plain",))
        assert body is not None
        return str(body.get_content())


@dataclass
class MailReceiver:
    """Serves from ``with`` to its end. ``answer`` gives the answer to the nth message, from 1; ``of_recipient`` that to an address."""

    answer: Callable[[int], str] = lambda number: "250 OK"
    of_recipient: Callable[[str], str] = lambda address: "250 OK"
    tls: ssl.SSLContext | None = None
    from_start: bool = False
    """TLS from the first byte; else by STARTTLS, which is required where there is ``tls``."""
    login: tuple[str, str] | None = None
    port: int = field(default_factory=free_port)
    received: list[Mail] = field(default_factory=list)

    def __enter__(self) -> Self:
        receiver, lock = self, threading.Lock()

        class Handler:
            async def handle_RCPT(  # noqa: N802 - the name that aiosmtpd calls
                self, server: Any, session: Any, envelope: Any, address: str, options: Any
            ) -> str:
                answer = receiver.of_recipient(address)
                if answer.startswith("250"):
                    envelope.rcpt_tos.append(address)
                return answer

            async def handle_DATA(  # noqa: N802 - the name that aiosmtpd calls
                self, server: Any, session: Any, envelope: Any
            ) -> str:
                with lock:
                    answer = receiver.answer(len(receiver.received) + 1)
                    is_tls = session.ssl is not None or receiver.from_start
                    mail = Mail(envelope.mail_from, list(envelope.rcpt_tos), envelope.content, answer, is_tls)
                    receiver.received.append(mail)
                return answer

        def authenticated(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
            assert isinstance(data, LoginPassword)
            given = (data.login.decode(), data.password.decode())
            return AuthResult(success=given == receiver.login, handled=False)

        options: dict[str, Any] = {}
        if self.tls is not None and not self.from_start:
            options |= {"tls_context": self.tls, "require_starttls": True}
        if self.login is not None:
            options |= {"authenticator": authenticated, "auth_required": True, "auth_require_tls": self.tls is not None}
            options |= {"auth_require_tls": False} if self.from_start else {}
        if self.from_start:
            options |= {"ssl_context": self.tls}
        self._controller = Controller(Handler(), hostname="127.0.0.1", port=self.port, **options)
        self._controller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.stop()

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self.port}"

    @property
    def taken(self) -> list[Mail]:
        """The messages that were accepted."""
        return [one for one in list(self.received) if one.answer.startswith("250")]
