"""The Jinja environment for each language."""

from functools import cache, partial
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from gateway.server.admin.answer import write_answer
from gateway.server.console.filters import FILTERS
from gateway.server.console.labels import format_label
from gateway.server.console.language import COOKIE, LANGUAGES, gettext, ngettext
from gateway.server.console.reasons import format_reason, list_patterns


@cache
def build_environment(language: str, **variables: Any) -> Environment:
    """Return the template environment of a language, with ``variables`` as globals. All applications share it."""
    env = Environment(
        loader=PackageLoader("gateway.server.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        extensions=["jinja2.ext.i18n"],
    )
    env.policies["ext.i18n.trimmed"] = True
    env.policies["json.dumps_kwargs"] = {"sort_keys": True, "ensure_ascii": False, "default": write_answer}
    env.filters.update(FILTERS, label=partial(format_label, language), reason=partial(format_reason, language))
    env.globals.update(
        language=language,
        languages=LANGUAGES,
        language_cookie=COOKIE,
        gettext=partial(gettext, language),
        ngettext=partial(ngettext, language),
        list_reasons=partial(list_patterns, language),
        **variables,
    )
    return env
