"""The JSON Schemas that are installed, and as much of a checker as they need."""

import json
from importlib.resources import files

TYPES = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
    "null": type(None),
}  # fmt: skip
ANNOTATIONS = {"$schema", "$id", "$defs", "title", "description"}


def _is(value, name):
    return isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def _refuses(keyword, limit, value):
    """Whether a keyword that concerns one value forbids it."""
    match keyword:
        case "const":
            return value != limit
        case "enum":
            return value not in limit
        case "type":
            return not any(_is(value, name) for name in ([limit] if isinstance(limit, str) else limit))
        case "minimum":
            return _is(value, "number") and value < limit
        case "maximum":
            return _is(value, "number") and value > limit
        case "minItems":
            return _is(value, "array") and len(value) < limit
        case "maxItems":
            return _is(value, "array") and len(value) > limit
        case "required":
            return _is(value, "object") and not set(limit) <= value.keys()
    raise AssertionError(f"this checker does not know {keyword!r}")


def _parts(keyword, inner, value, schema):
    """The values that a keyword hands on, each with the schema it must fit and its place."""
    if keyword == "items" and _is(value, "array"):
        return [(item, inner, f"[{i}]") for i, item in enumerate(value)]
    if not _is(value, "object"):
        return []
    if keyword == "properties":
        return [(value[key], inner[key], f".{key}") for key in inner if key in value]
    if keyword == "propertyNames":
        return [(key, inner, f" key {key}") for key in value]
    others = [key for key in value if key not in schema.get("properties", {})]
    return [(value[key], inner or {"enum": []}, f".{key}") for key in others]


def objections(value, schema, root=None, where="$"):
    """Every place in `value` that a schema forbids, with the keyword that does."""
    root = schema if root is None else root
    found = []
    for keyword, inner in schema.items():
        if keyword in ANNOTATIONS:
            continue
        if keyword == "$ref":
            found += objections(value, root["$defs"][inner.removeprefix("#/$defs/")], root, where)
        elif keyword == "anyOf":
            found += [] if any(not objections(value, option, root) for option in inner) else [f"{where}: anyOf"]
        elif keyword in ("items", "properties", "propertyNames", "additionalProperties"):
            for item, part, place in _parts(keyword, inner, value, schema):
                found += objections(item, part, root, where + place)
        elif _refuses(keyword, inner, value):
            found.append(f"{where}: {keyword}")
    return found


def objects_of(schema):
    """Every object that a schema describes key by key."""
    return [part for part in (schema, *schema["$defs"].values()) if "properties" in part]


def schema_of(name):
    """A schema, as it is installed."""
    return json.loads(files("firstdrift").joinpath(f"schemas/{name}.json").read_text("utf-8"))
