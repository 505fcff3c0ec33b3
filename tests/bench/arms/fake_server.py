"""A server that is ready at once, or not: `fake_server.py PORT [never|die|dies-later|fork FILE]`."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
import time


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if how == "never":
            self.send_error(503)
            return
        self.send_response(200)
        self.end_headers()
        if self.path == "/die":
            os._exit(7)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


port, how = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
if how == "die":
    sys.exit("ValueError: no such model")
if how == "fork":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(sys.argv[3], "a") as file:
        file.write(f"{os.getpid()}\n{child.pid}\n")
if how == "dies-later":
    threading.Thread(target=lambda: (time.sleep(float(sys.argv[3])), os._exit(9)), daemon=True).start()
http.server.ThreadingHTTPServer(("127.0.0.1", port), Page).serve_forever()
