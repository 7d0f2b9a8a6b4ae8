"""gpupool on Kubernetes: an admission webhook, a controller, and what runs in a pod.

The API server is spoken to with httpx, which every installation has (:mod:`cluster`): six verbs
on JSON. The official clients have no types, so ``mypy --strict`` would check nothing of what goes
through them, and kopf keeps a state of its own in every object; ours is all in the objects' own
fields, so a controller that starts anew knows what the last one knew.
"""
