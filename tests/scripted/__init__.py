"""The scripted engine: vLLM's HTTP surface with texts written in advance, and no model behind it.

``python -m tests.scripted --port 8101 --name my-model`` starts one. Every text that it produces says so.
A request can ask for bad behaviour in its top-level body field ``scripted`` (see ``script.Script``);
``POST /_scripted`` changes the defaults, ``GET /_scripted`` counts what happened.
"""
