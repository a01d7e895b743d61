#!/usr/bin/python3
"""The server tells a command and a webhook about problems of its health."""

import http.server
import threading

from harness import *


class Hook:
    """A webhook on this machine, which collects what it gets."""

    def __init__(self):
        got = self.got = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"


@test(hindcast_only=True)
def a_problem_is_told_when_it_begins_and_ends(t):
    hook, log = Hook(), t.dir / "told"
    command = f'echo "$HINDCAST_EVENT $HINDCAST_CODE $HINDCAST_SEVERITY" >> {log}; cat > /dev/null'
    server = t.server(args=(f"--notify-command={command}", f"--notify-webhook={hook.url}"))
    server.env["NO_PROXY"] = "127.0.0.1"
    results = server.cli("pool", "notify-test")
    assert results == [{"receiver": "command"}, {"receiver": "webhook"}], results
    assert log.read_text() == "test test info\n"
    assert [e["event"] for e in hook.got] == ["test"], hook.got
    server.create("db", MIB)
    server.cli("schedule", "create", "gone", "db", "--every", "10s")
    server.cli("volume", "delete", "db", "--force")
    wait_for("the beginning", lambda: "began schedule-failing warning" in log.read_text(), limit=40)
    [problem] = server.cli("status")["health"]["problems"]
    assert problem["severity"] == "warning" and problem["since"], problem
    began = wait_for("the webhook", lambda: hook.got[1:])
    assert began[0]["code"] == "schedule-failing" and "gone" in began[0]["message"], began
    assert began[0]["data"] == str(server.dir) and began[0]["count"] == 1, began
    server.cli("schedule", "delete", "gone")
    wait_for("the end, a minute later", lambda: "ended schedule-failing warning" in log.read_text(), limit=100)
    wait_for("the webhook", lambda: [e["event"] for e in hook.got] == ["test", "began", "ended"])


@test(hindcast_only=True)
def what_fails_is_reported(t):
    server = t.server(args=("--notify-command=exit 3",))
    code, out, err = server.cli("pool", "notify-test", code=None)
    assert code == FAILED and "3" in json.loads(out)[0]["error"] and "1 of 1" in err, (out, err)
    silent = t.server("other")
    assert "--notify-command" in silent.cli("pool", "notify-test", code=FAILED)


if __name__ == "__main__":
    main()
