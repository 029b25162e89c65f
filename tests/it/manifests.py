"""Validates files of Kubernetes' objects against its schemas, the oldest and the newest version that the validator knows, and
prints the objects as JSON. An object is not valid if it has a field that the schema does not have."""

import json, sys

import kubernetes_validate
import yaml
from kubernetes_validate.utils import all_versions

objects = []
for path in sys.argv[1:]:
    with open(path) as file:
        objects += yaml.safe_load_all(file)
versions = all_versions()
for found in objects:
    for version in [versions[0], versions[-1]]:
        try:
            kubernetes_validate.validate(found, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            place = ".".join(map(str, error.path))
            sys.exit(f"{found['kind']} {found['metadata']['name']}: {place}: {error.message}")
json.dump(objects, sys.stdout)
