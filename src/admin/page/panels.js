// What the page shows of the numbers. Each panel has its elements and updates them in place.

/** The names of the types of a shared store. */
const SOFTWARE = { memcached: "Memcached", valkey: "Valkey" };

/** The state of the gateway, and how long this page has had no data. */
class Header {
  last = null;
  sentence = "";

  constructor() {
    setText(byId("host"), location.host);
  }

  show(numbers) {
    this.last = Date.now();
    document.body.classList.remove("away");
    const texts = {
      ready: "ready",
      draining: "draining: readiness is off",
      stopping: "stopping",
    };
    this.state(numbers.state, texts[numbers.state] ?? numbers.state);
    setText(byId("version"), numbers.version);
    setText(byId("uptime"), span(numbers.uptime_seconds));
    setText(byId("time"), clock(numbers.time_ms));
    const isDraining = numbers.state === "draining";
    setText(byId("drain"), isDraining ? "End drain" : "Drain");
    byId("drain").disabled = numbers.state === "stopping";
    byId("reload").disabled = numbers.state === "stopping";
  }

  away(sentence) {
    document.body.classList.add("away");
    const since = this.last === null ? "no data yet" : `no data since ${moment(this.last)}`;
    this.state("away", sentence === "" ? since : `${since}: ${sentence}`);
    byId("drain").disabled = true;
    byId("reload").disabled = true;
  }

  state(state, text) {
    byId("state").dataset.state = state;
    setText(byId("state-text"), text);
    document.title = state === "ready" ? "gateway" : `gateway: ${text}`;
  }
}

/** The large numbers. */
class Tiles {
  show(numbers, requests, readings) {
    const rates = requests.recent();
    const all = rates.includes(null) ? null : sum(rates);
    const of = (id) => rates[GROUPS.findIndex((group) => group.id === id)];
    const total = sum(Object.values(numbers.requests));
    this.tile("requests", rate(all), `${count(total)} since the start`);
    this.tile("limited", share(of("limited"), all), `${rate(of("limited"))} per second`);
    setAttribute(byId("tile-limited"), "data-active", of("limited") > 0 ? "" : null);
    this.tile("failed", share(of("failed"), all), `${of("failed") > 0 ? "▲ " : ""}${rate(of("failed"))} per second`);
    setAttribute(byId("tile-failed"), "data-alert", of("failed") > 0 ? "" : null);
    const [median, slow] = readings.quantiles((reading) => reading.forwarded_seconds, [0.5, 0.99]);
    this.tile("latency", latency(median), `99 % within ${latency(slow)}`);
    const { open, max } = numbers.connections;
    this.tile("connections", count(open), `of ${count(max)}, ${count(numbers.held)} requests held`);
    this.store(numbers.store, readings);
  }

  tile(id, big, small) {
    const tile = byId(`tile-${id}`);
    setText(tile.querySelector(".big"), big);
    setText(tile.querySelector(".small"), small);
  }

  store(store, readings) {
    const isShared = store?.servers !== undefined;
    if (isShared) {
      const name = SOFTWARE[store.type];
      const down = store.servers.filter((server) => !server.up).length;
      const [median] = readings.quantiles((reading) => reading.store?.round_trip_seconds, [0.5]);
      const up = `${store.servers.length - down} of ${store.servers.length} up`;
      this.tile("store", down === 0 ? name : `▲ ${name}`, `${up}, median ${latency(median)}`);
      setAttribute(byId("tile-store"), "data-alert", down === 0 ? null : "");
    } else if (store) {
      this.tile("store", "memory", `${count(store.keys)} keys, ${size(store.bytes)}`);
    }
    byId("tile-store")
      .querySelector(".big")
      .classList.toggle("long", isShared);
  }
}

/** The requests by outcome, as numbers. */
class RequestsTable {
  show(numbers, requests) {
    const rates = requests.recent();
    const all = rates.includes(null) ? null : sum(rates);
    const rows = GROUPS.map((group, index) => ({ group, rate: rates[index] }));
    const create = ({ group }) => {
      const made = row(4, 1);
      const area = shape("path", { class: `area ${group.id}`, d: "M0 1H24V9H0Z" });
      const line = shape("path", { class: `line ${group.id}`, d: "M0 1H24" });
      const sample = shape("svg", { class: "key", viewBox: "0 0 24 10", "aria-hidden": "true" }, area, line);
      made.cells[0].append(
        sample,
        element("span", {}, group.name),
        " ",
        element("small", {}, group.outcomes.join(", ")),
      );
      return made;
    };
    updateList(
      byId("requests-table").tBodies[0],
      rows,
      ({ group }) => group.id,
      create,
      (shown, { group, rate: now }) => {
        const total = totalOf(numbers.requests, group);
        const texts = [rate(now), share(now, all), count(total)];
        texts.forEach((text, index) => setText(shown.cells[index + 1], text));
        shown.classList.toggle("quiet", total === 0);
      },
    );
  }
}

/** The routes with the most requests. */
class Routes {
  show({ routes }, readings) {
    updateList(
      byId("routes").tBodies[0],
      routes,
      ({ name }) => name,
      () => row(5, 1),
      (line, { name, requests, refused, failed }) => {
        const read = (reading) => reading.routes.find((other) => other.name === name)?.requests;
        setCells(line, [name, rate(readings.rate(read)), ...[requests, refused, failed].map(count)]);
        setAttribute(line.cells[3], "data-active", refused > 0 ? "" : null);
        setAttribute(line.cells[4], "data-active", failed > 0 ? "" : null);
      },
    );
  }
}

/** The servers of each upstream. */
class Upstreams {
  show(numbers, readings) {
    byId("upstreams-empty").hidden = numbers.upstreams.length > 0;
    byId("upstreams").hidden = numbers.upstreams.length === 0;
    const rows = numbers.upstreams.flatMap((upstream) => [
      { key: `upstream ${upstream.name}`, upstream },
      ...upstream.servers.map((server) => ({ key: `server ${upstream.name} ${server.server}`, upstream, server })),
    ]);
    updateList(
      byId("upstreams").tBodies[0],
      rows,
      ({ key }) => key,
      (item) => this.create(item),
      (shown, { upstream, server }) => {
        if (!server) {
          const notes = [`${count(upstream.retries)} retries`, `${count(upstream.waiting)} requests wait`];
          setText(shown.cells[0], `${upstream.name} · ${notes.join(" · ")}`);
          return;
        }
        const read = (field) => (reading) => {
          const found = reading.upstreams.find((other) => other.name === upstream.name);
          return found?.servers.find((other) => other.server === server.server)?.[field];
        };
        const most = server.max_in_flight === null ? "" : ` of ${count(server.max_in_flight)}`;
        const isFailing = readings.rate(read("failures")) > 0;
        const failures = `${isFailing ? "▲ " : ""}${count(server.failures)}`;
        const cells = [
          server.server,
          server.health,
          `${count(server.in_flight)}${most}`,
          rate(readings.rate(read("requests"))),
          failures,
          latency(server.latency_seconds),
        ];
        setCells(shown, cells);
        shown.cells[1].className = server.health === "healthy" ? "health" : "health bad";
        shown.cells[4].classList.toggle("problem", isFailing);
      },
    );
  }

  create({ server }) {
    if (server) {
      return row(6, 2);
    }
    return element("tr", { class: "upstream-name" }, element("th", { scope: "rowgroup", colspan: "6" }));
  }
}

/** Where the counters are, and how it goes there. */
class Store {
  show(numbers, readings) {
    const { store } = numbers;
    if (!store) {
      return;
    }
    const software = SOFTWARE[store.type];
    setText(byId("store-type"), software ? `in ${software}` : "in memory, in this process");
    const pairs = software ? this.servers(store, readings) : this.memory(store);
    const items = pairs.flatMap(([name, value, part]) => [
      { name, text: name, tag: "dt" },
      { name, text: value, tag: "dd", part },
    ]);
    updateList(
      byId("store"),
      items,
      ({ name, tag }) => `${tag} ${name}`,
      ({ tag, part }) => {
        const made = element(tag, {}, element("span"));
        if (part !== undefined) {
          made.append(element("progress", { max: "1", "aria-hidden": "true" }));
        }
        return made;
      },
      (shown, { text, part }) => {
        setText(shown.firstElementChild, text);
        shown.classList.toggle("problem", text.startsWith("▲"));
        if (part !== undefined) {
          shown.lastElementChild.value = part;
        }
      },
    );
  }

  memory(store) {
    return [
      ["keys", `${count(store.keys)} of ${count(store.max_keys)}`, store.keys / store.max_keys],
      ["memory", `${size(store.bytes)} of ${size(store.max_bytes)}`, store.bytes / store.max_bytes],
      ["keys evicted in use", count(store.evictions)],
      ...(store.gateways > 1 ? [["gateways that share the limits", count(store.gateways)]] : []),
      ["latency", "none: no round trip"],
    ];
  }

  servers(store, readings) {
    const [median, slow] = readings.quantiles((reading) => reading.store?.round_trip_seconds, [0.5, 0.99]);
    const of = (field) => readings.rate((reading) => reading.store?.[field]);
    return [
      ...store.servers.map((server) => [server.server, server.up ? "● up" : "▲ down"]),
      ["latency, median", latency(median)],
      ["latency, 99 %", latency(slow)],
      ["round trips per second", rate(of("round_trips"))],
      ["errors", count(store.errors)],
      [`decided without ${SOFTWARE[store.type]}`, count(store.local)],
      ["counters lost", count(store.lost)],
    ];
  }
}

/** The last reloads of the configuration, and of the certificates alone. */
class Reloads {
  show({ reloads, certificates }) {
    setText(byId("reloads-count"), `${count(reloads.ok)} applied, ${count(reloads.refused)} refused`);
    const numbered = ({ recent }, of) =>
      recent.map((reload, index) => ({ ...reload, of, index: recent.length - index }));
    const all = [...numbered(reloads, ""), ...numbered(certificates, ": certificates")];
    all.sort((one, other) => other.time - one.time);
    byId("reloads-empty").hidden = all.length > 0;
    updateList(
      byId("reloads"),
      all,
      ({ time, result, of, index }) => `${time} ${result} ${of} ${index}`,
      () => {
        return element("li", {}, element("span"), element("span"), element("span", { class: "why" }));
      },
      (shown, { time, result, of, problem }) => {
        const [when, what, why] = shown.children;
        setText(when, moment(1000 * time));
        setText(what, (result === "ok" ? "● applied" : "▲ refused") + of);
        what.className = result === "ok" ? "" : "problem";
        setText(why, problem ? `${problem.place ? `${problem.place}: ` : ""}${problem.message}` : "");
      },
    );
  }
}

/** How long before it expires a certificate expires soon, in seconds. */
const SOON = 14 * 86_400;

/** The certificates that expire first. */
class Certificates {
  show({ expiries, time_ms }) {
    byId("certificates-card").hidden = expiries.length === 0;
    updateList(
      byId("certificates"),
      expiries,
      ({ certificate }) => certificate,
      () => element("li", {}, element("span"), element("span"), element("span", { class: "why" })),
      (shown, { certificate, names, valid_until }) => {
        const [until, left, what] = shown.children;
        const end = Date.parse(valid_until);
        const seconds = (end - time_ms) / 1000;
        setText(until, `valid until ${moment(end)}`);
        const text = seconds > 0 ? `${span(seconds)} left` : "expired";
        setText(left, seconds > SOON ? text : `▲ ${text}`);
        left.className = seconds > SOON ? "" : "problem";
        setText(what, [certificate, ...names].join(", "));
      },
    );
  }
}

/** The most characters that are shown of a section. It may have a list of a million keys. */
const MAX_SECTION = 100_000;

/** The configuration in force, section by section. */
class Configuration {
  show(config) {
    const sections = Object.entries(config).filter(([, value]) => value !== null);
    updateList(
      byId("config"),
      sections,
      ([name]) => name,
      ([name]) => {
        return element(
          "details",
          {},
          element("summary", {}, element("code", {}, name)),
          element("pre", { tabindex: "0", "aria-label": name }),
        );
      },
      (shown, [, value]) => setText(shown.lastElementChild, this.text(value)),
    );
  }

  text(value) {
    const all = JSON.stringify(value, null, 2);
    const more = all.length - MAX_SECTION;
    return more <= 0 ? all : `${all.slice(0, MAX_SECTION)}\n… and ${count(more)} more characters: GET /api/config`;
  }

  problem(sentence) {
    byId("config-problem").hidden = sentence === "";
    setText(byId("config-problem"), sentence);
  }
}

