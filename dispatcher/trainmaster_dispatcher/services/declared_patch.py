"""Changes of some fields of a declared object, by a JSON merge patch."""

from pydantic import ValidationError

from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.validation_errors import UNKNOWN_FIELD, mistakes_of
from trainmaster_dispatcher.domain.declared_fields import Wire, is_known, is_too_deep, merge_patched, written
from trainmaster_dispatcher.services.declared import DeclaredKind
from trainmaster_dispatcher.services.revisions import Author
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.declared import Spec, Stored


async def patch_object(
    tx: Transaction, kind: DeclaredKind[Spec, Stored], name: str, patch: Wire, author: Author
) -> Spec:
    """Change an object that the caller has locked; return its specification. Raises ProblemError with each mistake."""
    author.check_target(kind.kind.kind, name)
    before = (await kind.table.wire(tx, [name])).get(name)
    if before is None:
        raise await kind.missing(tx, name)
    if is_too_deep(patch):
        raise ProblemError(Code.INVALID_SPEC, "after the patch, mappings and lists would be nested too deep")
    model = kind.kind.spec
    try:
        whole = model.long_form(patch)
        spec = model.model_validate(merge_patched(before, whole))
    except ValidationError as error:
        raise _refused([Mistake(path=one.path, message=one.message) for one in mistakes_of(error)]) from error
    except ValueError as error:
        raise _refused([Mistake(path="patch", message=str(error))]) from error
    if kind.kind.name_of(spec) != name:
        raise _refused([Mistake(path=kind.kind.key, message=f"is {name!r} and cannot be changed")])
    full = spec.model_dump(mode="json", by_alias=True)
    # What null removes further down may be a key of a mapping, which need not be there.
    stated = {path if value is not None else path[:1] for path, value in kind.fields_of(whole).items()}
    unknown = sorted(path for path in stated if not is_known(full, path))
    if unknown:
        raise _refused([Mistake(path=written(path), message=UNKNOWN_FIELD) for path in unknown])
    await kind.patch(tx, spec, author, whole)
    return spec


def _refused(mistakes: list[Mistake]) -> ProblemError:
    found = tuple(Mistake(path=one.path, message=f"after the patch: {one.message}") for one in mistakes)
    return ProblemError(Code.INVALID_SPEC, f"{found[0].path}: {found[0].message}", mistakes=found)
