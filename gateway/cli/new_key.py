"""Creates an API key, and fills in names that the command omits."""

import itertools

from gateway.cli.admin_client import AdminClient
from gateway.cli.context import CliError, Json


async def create_key(admin: AdminClient, account: str | None, fields: Json) -> Json:
    """Create a key of ``account``, by default of the only account; return the API's answer with the secret.

    Without a name in ``fields``, use a free name. Raises ``CliError`` if there is no account, or more than one to
    choose from.
    """
    if account is None:
        names = [item["name"] for item in (await admin.get("accounts"))["data"]]
        if not names:
            raise CliError("There is no account. Add one: gateway accounts add NAME")
        if len(names) > 1:
            raise CliError(f"There are several accounts. Pass --account: {', '.join(names)}")
        account = names[0]
    if "name" not in fields:
        taken_names = {key["name"] for key in (await admin.get("keys"))["data"] if key["account"] == account}
        number = next(number for number in itertools.count(len(taken_names) + 1) if f"key-{number}" not in taken_names)
        fields = {"name": f"key-{number}", **fields}
    return await admin.call("POST", "keys", body={"account": account, **fields})
