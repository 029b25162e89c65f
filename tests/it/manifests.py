"""Validates files of Kubernetes' objects against its schemas, the oldest and the newest version that the validator knows, and
prints the objects as JSON. An object is not valid if it has a field that the schema does not have. Of a folder it takes what
its kustomization makes, as far as that lists resources, replaces values, and deletes objects."""

import json, sys
from pathlib import Path

import kubernetes_validate
import yaml
from kubernetes_validate.utils import all_versions



def load(path):
    if not path.is_dir():
        return list(yaml.safe_load_all(path.read_text()))
    kustomization = yaml.safe_load((path / "kustomization.yaml").read_text())
    made = [found for name in kustomization["resources"] for found in load(path / name)]
    for patch in kustomization.get("patches", []):
        if "target" not in patch:
            gone = yaml.safe_load(patch["patch"])
            assert gone.pop("$patch") == "delete", gone
            [target] = [found for found in made if found["kind"] == gone["kind"] and found["metadata"]["name"] == gone["metadata"]["name"]]
            made.remove(target)
            continue
        kind, name = patch["target"]["kind"], patch["target"]["name"]
        [target] = [found for found in made if (found["kind"], found["metadata"]["name"]) == (kind, name)]
        for change in yaml.safe_load(patch["patch"]):
            assert change["op"] == "replace", change
            *way, last = change["path"].strip("/").split("/")
            place = target
            for step in way:
                place = place[int(step) if isinstance(place, list) else step]
            last = int(last) if isinstance(place, list) else last
            assert place[last], f"{change['path']} is not there"
            place[last] = change["value"]
    return made


objects = [found for path in sys.argv[1:] for found in load(Path(path))]
versions = all_versions()
for found in objects:
    for version in [versions[0], versions[-1]]:
        try:
            kubernetes_validate.validate(found, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            place = ".".join(map(str, error.path))
            sys.exit(f"{found['kind']} {found['metadata']['name']}: {place}: {error.message}")
json.dump(objects, sys.stdout)
