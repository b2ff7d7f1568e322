"""Keys that ``up`` and ``admin bootstrap`` make: two valid keys of people never have one name, also on a restored store."""

from tests.conftest import ADMIN_KEY, Service
from trainmaster.protocol.states import KeyRole
from trainmaster.protocol.tenants import KeySpec
from trainmaster_dispatcher.services.bootstrap import make_local_installation, make_what_is_missing

_NEW = "tmk_another-folder"


async def _names(service: Service) -> list[str]:
    listed = (await service.http.get("/v1/keys")).json()["keys"]
    return [one["name"] for one in listed if one["role"] == "admin" and one["revokedAt"] is None]


async def test_the_key_of_another_folder_has_a_name_of_its_own(service: Service) -> None:
    assert await _names(service) == ["admin"]
    (sentence,) = await make_local_installation(service.settings, [], {"admin": _NEW}, [])
    assert "trainmaster keys revoke 1" in sentence
    assert "which is admin-2" in sentence
    assert await _names(service) == ["admin", "admin-2"]
    async with service.as_key(_NEW) as other:
        assert (await other.get("/v1/whoami")).json()["name"] == "admin-2"
    for secret in (_NEW, ADMIN_KEY):
        assert await make_local_installation(service.settings, [], {"admin": secret}, []) == []
    assert await _names(service) == ["admin", "admin-2"], "each start is with the key that the folder has"


async def test_the_name_of_a_revoked_key_is_used_again(service: Service) -> None:
    assert (await service.http.delete("/v1/keys/1", params={"force": True})).status_code == 204
    assert await make_local_installation(service.settings, [], {"admin": _NEW}, []) == []
    async with service.as_key(_NEW) as other:
        assert (await other.get("/v1/whoami")).json()["name"] == "admin"


async def test_a_bootstrap_with_another_secret_makes_a_key_of_another_name_once(service: Service) -> None:
    wanted = [(KeySpec(name="admin", role=KeyRole.ADMIN), _NEW)]
    assert await make_what_is_missing(service.settings, [], wanted) == ["made key admin-2"]
    assert await make_what_is_missing(service.settings, [], wanted) == []
    assert await _names(service) == ["admin", "admin-2"]
