"""A stand-in for wandb's server: what a run consists of there, and how a start is told where the one before ended.

It knows what wandb 0.31 asks: a run's place in its history when it is resumed, lines at an offset, configuration.
"""

import gzip
import json
import re

from tests.local_server import Handler


class Runs(dict):
    """By id: {"lines": history, a dict per offset, "config": {…}, "summary": {…}, "group", "name", "exit"}."""

    def history(self, run: str) -> list[dict]:
        lines = self[run]["lines"]
        assert sorted(lines) == list(range(len(lines)))
        return [lines[i] for i in sorted(lines)]


class WandbServer(Handler):
    def do_GET(self) -> None:
        self.say({})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.path.endswith(("/file_stream", "/graphql")):  # telemetry, of wandb itself
            return self.say({})
        sent = json.loads(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
        if self.path.endswith("/file_stream"):
            self.take(self.path.split("/")[-2], sent)
            return self.say({})
        operation = re.search(r"(?:query|mutation)\s+(\w+)", sent["query"])[1]
        self.say({"data": self.answer(operation, sent.get("variables") or {})})

    def say(self, answer: dict) -> None:
        self.send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def take(self, run: str, sent: dict) -> None:
        found = self.server.hub[run]
        for name, part in (sent.get("files") or {}).items():
            if name == "wandb-history.jsonl":
                found["lines"].update(enumerate(map(json.loads, part["content"]), part["offset"]))
            elif name == "wandb-summary.json":
                found["summary"] = json.loads(part["content"][-1])
        if sent.get("complete"):
            found["exit"] = sent["exitcode"]

    def answer(self, operation: str, given: dict) -> dict:
        runs, run = self.server.hub, given.get("name")
        if operation == "Viewer":
            return {"viewer": {"id": "u", "entity": "we", "username": "we", "flags": "{}", "teams": {"edges": []}}}
        if operation == "CreateRunFiles":
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []}}
        if operation == "UpsertBucket":
            found = runs.setdefault(run, {"lines": {}, "config": {}, "summary": {}})
            found["config"].update(json.loads(given.get("config") or "{}"))
            found["group"] = given.get("groupName") or found.get("group")
            found["name"] = given.get("displayName") or found.get("name")
            project = {"id": "p", "name": given["project"], "entity": {"id": "e", "name": "we"}}
            bucket = {"id": "b", "name": run, "displayName": found["name"], "config": "{}", "project": project}
            return {"upsertBucket": {"bucket": {**bucket, "historyLineCount": 0}, "inserted": not found["lines"]}}
        if operation == "RunResumeStatus":
            return {"model": {"id": "m", "name": "lra", "entity": {"id": "e", "name": "we"}, "bucket": self.where(run)}}
        return {}

    def where(self, run: str) -> dict | None:
        """How far a run has come; None for one that is not there."""
        if run not in self.server.hub:
            return None
        found, lines = self.server.hub[run], self.server.hub.history(run)
        counts = {"historyLineCount": len(lines), "eventsLineCount": 0, "logLineCount": 0}
        tails = {"historyTail": json.dumps([json.dumps(lines[-1])] if lines else []), "eventsTail": "[]"}
        texts = {"config": json.dumps(found["config"]), "summaryMetrics": json.dumps(found["summary"])}
        # "t" says that it was begun, and not only made by a sweep.
        return {"id": "b", "name": run, "displayName": found["name"], "tags": [], "wandbConfig": '{"t": 1}',
                **counts, **tails, **texts}  # fmt: skip
