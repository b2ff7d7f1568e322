"""E-mail by SMTP. The server is the admin's choice, so its address is not checked as those of webhooks are.

``smtplib`` in threads of its own: it is in the standard library, does STARTTLS and authentication, and a dispatcher sends few
messages. Each message has a connection of its own, so that a server that ends idle connections loses none.
"""

import asyncio
import smtplib
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from email.message import EmailMessage

from trainmaster_dispatcher.domain.mail_server import MailServer
from trainmaster_dispatcher.services.webhooks import DeliveryError

_SENDING = ThreadPoolExecutor(4, "mail")
_LONGEST_ANSWER = 200


class Mailer:
    """Sends e-mail through one server. Implements ``services.webhooks.MailPost``.

    ``timeout``: seconds for each answer of the server.
    """

    def __init__(self, server: MailServer, sender: str, timeout: float = 5.0) -> None:
        self._server = server
        self._sender = sender
        self._timeout = timeout

    async def __call__(self, mail: EmailMessage, recipient: str) -> None:
        """Send a message. Raises DeliveryError, a final one if the server answers that it will never take it (5xx)."""
        await asyncio.get_running_loop().run_in_executor(_SENDING, self._send, mail, recipient)

    def _send(self, mail: EmailMessage, recipient: str) -> None:
        host = self._server.host
        try:
            with self._connected() as smtp:
                smtp.send_message(mail, self._sender, [recipient])
        except smtplib.SMTPRecipientsRefused as error:
            code, answer = error.recipients[recipient]
            raise _refused(host, code, answer) from error
        except smtplib.SMTPAuthenticationError as error:
            # The admin corrects the password, and the message goes out at a later attempt.
            raise DeliveryError(
                f"the mail server {host} did not take the user and password: {error.smtp_code}"
            ) from error
        except smtplib.SMTPResponseException as error:
            raise _refused(host, error.smtp_code, error.smtp_error) from error
        except smtplib.SMTPException as error:
            raise DeliveryError(f"the mail server {host}: {str(error)[:_LONGEST_ANSWER]}") from error
        except ssl.SSLError as error:
            raise DeliveryError(f"the mail server {host}: TLS failed: {error.reason or error}") from error
        except OSError as error:
            raise DeliveryError(f"the mail server {host} cannot be reached: {error.strerror or error}") from error

    @contextmanager
    def _connected(self) -> Iterator[smtplib.SMTP]:
        server = self._server
        tls = ssl.create_default_context(cafile=server.ca_file or None)
        if server.is_tls:
            smtp: smtplib.SMTP = smtplib.SMTP_SSL(server.host, server.port, timeout=self._timeout, context=tls)
        else:
            smtp = smtplib.SMTP(server.host, server.port, timeout=self._timeout)
        try:
            smtp.ehlo()
            if not server.is_tls and (smtp.has_extn("starttls") or not server.may_be_plain):
                if not smtp.has_extn("starttls"):
                    raise DeliveryError(
                        f"the mail server {server.host} offers no STARTTLS; TRAINMASTER_SMTP_ALLOW_PLAIN sends without"
                    )
                smtp.starttls(context=tls)
                smtp.ehlo()
            if server.user:
                smtp.login(server.user, server.password)
            yield smtp
        finally:
            with suppress(OSError, smtplib.SMTPException):
                smtp.quit()
            smtp.close()


def _refused(host: str, code: int, answer: bytes | str) -> DeliveryError:
    text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer
    said = " ".join(text.split())[:_LONGEST_ANSWER]
    return DeliveryError(f"the mail server {host} answered {code} {said}".rstrip(), is_final=500 <= code < 600)
