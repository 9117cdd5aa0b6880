"""Build JSON Schema (2020-12, as in OpenAPI 3.1) concisely."""

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]


def _build_schema(**fields: Any) -> Schema:
    return fields


ANYTHING: Schema = _build_schema()
TEXT: Schema = _build_schema(type="string")
INTEGER: Schema = _build_schema(type="integer")
COUNT: Schema = _build_schema(type="integer", minimum=0)
NUMBER: Schema = _build_schema(type="number")
FLAG: Schema = _build_schema(type="boolean")
MOMENT: Schema = _build_schema(type="string", format="date-time")
NOTHING: Schema = _build_schema(type="null")


def one_of(*values: str) -> Schema:
    """Return the schema of a string that is one of ``values``."""
    return _build_schema(type="string", enum=list(values))


def maybe(schema: Schema) -> Schema:
    """Return the schema of null or what fits ``schema``."""
    return _build_schema(anyOf=[dict(schema), dict(NOTHING)])


def either(*schemas: Schema) -> Schema:
    """Return the schema of a value that fits one of ``schemas``."""
    return _build_schema(anyOf=[dict(schema) for schema in schemas])


def array(items: Schema) -> Schema:
    """Return the schema of a list of ``items``."""
    return _build_schema(type="array", items=dict(items))


def table(values: Schema) -> Schema:
    """Return the schema of an object with any names and these ``values``."""
    return _build_schema(type="object", additionalProperties=dict(values))


def record(**fields: Schema) -> Schema:
    """Return the schema of an object with exactly ``fields``, all required."""
    properties = {name: dict(schema) for name, schema in fields.items()}
    return _build_schema(type="object", properties=properties, required=list(properties), additionalProperties=False)


def allow(schema: Schema, **fields: Schema) -> Schema:
    """Return the record ``schema`` with ``fields`` as further, optional fields."""
    return _build_schema(
        **{
            **schema,
            "properties": {
                **schema["properties"],
                **{name: dict(field_schema) for name, field_schema in fields.items()},
            },
        }
    )


def explain(schema: Schema, description: str) -> Schema:
    """Return ``schema`` with a description."""
    return _build_schema(**{**schema, "description": description})


def listing(items: Schema) -> Schema:
    """Return the schema of a list in the form of the OpenAI API."""
    return record(object=one_of("list"), data=array(items))


def page(items: Schema) -> Schema:
    """Return the schema of one page of a list. ``total`` counts the objects on all pages."""
    return record(object=one_of("list"), data=array(items), total=COUNT, next=maybe(TEXT))
