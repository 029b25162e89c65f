// The panel of the limits.

/** How many keys or models are shown of each list. */
const SHOWN_ROWS = 3;
/** Up to so many limits are all shown, and there is nothing to search. */
const FEW_LIMITS = 6;
/** How many limits show their keys at once. */
const OPEN_LIMITS = 3;
/** What a limit refuses, or would refuse if it only reports. */
const REFUSED = ["rejected", "shadowed", "silenced", "blocked", "banned", "keyless"];

/** The limits: what they decide now, their refusals over the last hour, and their keys. */
class Limits {
  minutes = new Map();
  minute = 0;
  described = new Map();

  /** `onLift` lifts the ban of a key of a limit, and removes its override. */
  constructor(onLift) {
    this.onLift = onLift;
    byId("limits-filter").addEventListener("input", () => this.again?.());
    byId("limits-quiet").addEventListener("toggle", () => this.again?.());
  }

  /** Takes over the history of the gateway. */
  load({ minute, refused_by_minute: refused }) {
    this.minute = minute;
    this.minutes = new Map(Object.entries(refused));
  }

  /** Takes over rates and keys. */
  describe(limits, config) {
    this.described = new Map(limits.map((limit) => [limit.name, { ...limit, config: config?.limits?.[limit.name] }]));
    this.showsKeys = config?.admin?.show_keys === true;
  }

  /** The limits are in the order of the gateway: those that have refused most come first. */
  show(numbers, readings, onKey) {
    this.again = () => this.lists(numbers.limits, readings, onKey);
    const passed = Math.min(MINUTES, Math.max(0, numbers.minute - this.minute));
    this.minute = numbers.minute;
    for (const limit of numbers.limits) {
      const minutes = (this.minutes.get(limit.name) ?? Array(MINUTES).fill(0))
        .concat(Array(passed).fill(0))
        .slice(-MINUTES);
      minutes[MINUTES - 1] = limit.refused_this_minute;
      this.minutes.set(limit.name, minutes);
    }
    this.again();
  }

  /** Whether there is nothing to see of a limit. */
  isQuiet({ name }) {
    const { bans = [], temporary = [] } = this.described.get(name) ?? {};
    return sum(this.minutes.get(name)) === 0 && bans.length === 0 && temporary.length === 0;
  }

  /** Shows what the filter leaves; without one, quiet limits are folded if there are many. */
  lists(limits, readings, onKey) {
    const isMany = limits.length > FEW_LIMITS;
    byId("limits-empty").hidden = limits.length > 0;
    byId("limits-search").hidden = !isMany;
    const wanted = byId("limits-filter").value.trim().toLowerCase();
    const found = limits.filter(({ name }) => name.toLowerCase().includes(wanted));
    byId("limits-none").hidden = found.length > 0 || limits.length === 0;
    const isFolded = (limit) => isMany && wanted === "" && this.isQuiet(limit);
    const [quiet, rest] = [found.filter(isFolded), found.filter((limit) => !isFolded(limit))];
    this.list(byId("limits"), rest, OPEN_LIMITS, readings, onKey);
    byId("limits-quiet").hidden = quiet.length === 0;
    const what = quiet.length === 1 ? "quiet limit" : "quiet limits";
    setText(byId("limits-quiet").querySelector("summary"), `${count(quiet.length)} ${what}: nothing refused in the last hour`);
    this.list(byId("limits-folded"), byId("limits-quiet").open ? quiet : [], 0, readings, onKey);
  }

  /** The first ones, `open` of them, show their keys at once. */
  list(parent, limits, open, readings, onKey) {
    updateList(
      parent,
      limits,
      (limit) => limit.name,
      (limit) => this.create(limit, limits.indexOf(limit) < open),
      (shown, limit) => {
        const read = (decisions) => (reading) => {
          const found = reading.limits.find((other) => other.name === limit.name);
          return found && sum(decisions.map((decision) => found.decisions[decision]));
        };
        const minutes = this.minutes.get(limit.name);
        const described = this.described.get(limit.name);
        const rates = described?.rates.join(" and ") ?? "";
        const per = [described?.config?.key ?? []].flat().join(" and ");
        const mode = described?.config?.on_limit ?? "reject";
        const pool = described?.config?.overflow;
        setText(shown.querySelector(".limit-name span"), limit.name);
        const unit = described?.tokens ? " tokens" : "";
        const kind = `${rates}${unit}${per ? ` per ${per}` : ""}${mode === "reject" ? "" : `, ${mode}`}${pool ? `, then ${pool}` : ""}`;
        setText(shown.querySelector(".limit-name small"), kind);
        const [refused, hour] = [readings.rate(read(REFUSED)), sum(minutes)];
        const texts = [
          rate(readings.rate(read(["admitted"]))),
          rate(refused),
          count(hour),
          rate(readings.rate(read(["overflowed"]))),
        ];
        shown.querySelector(".overflowed").hidden = !pool;
        shown.querySelectorAll("dd").forEach((number, index) => setText(number, texts[index]));
        // No refusals are nothing to look at.
        shown.querySelectorAll(".over").forEach((number, index) => {
          setAttribute(number, "data-active", [refused, hour][index] > 0 ? "" : null);
        });
        setText(shown.querySelector(".over dt"), mode === "shadow" ? "shadowed/s" : "refused/s");
        shown.bars.draw(minutes);
        this.tokens(shown.querySelector(".limit-tokens"), described?.tokens);
        this.bans(shown.querySelector(".limit-bans"), described);
        this.overrides(shown.querySelector(".limit-overrides"), described);
        this.keys(shown, described, onKey);
        const more = shown.querySelector(".limit-more");
        more.hidden = ![...more.children].some((part) => part.tagName !== "SUMMARY" && !part.hidden && part.childElementCount > 0);
      },
    );
  }

  create(limit, isOpen) {
    const number = (name, kind) => element("div", { class: kind }, element("dt", {}, name), element("dd", {}, "–"));
    const column = (name, index) => element("th", { scope: "col", class: index === 0 ? "" : "number" }, name);
    const table = (kind, columns) =>
      element(
        "table",
        { class: kind, hidden: "" },
        element("caption"),
        element("thead", {}, element("tr", {}, ...columns.map(column))),
        element("tbody"),
      );
    const bars = element("div", { class: "bars" });
    const made = element(
      "li",
      {},
      element("h3", { class: "limit-name" }, element("span"), element("small")),
      bars,
      element(
        "dl",
        { class: "limit-numbers" },
        number("admitted/s", ""),
        number("refused/s", "over"),
        number("last hour", "over"),
        number("overflowed/s", "overflowed"),
      ),
      element(
        "details",
        { class: "limit-more", ...(isOpen ? { open: "" } : {}) },
        element("summary", {}, "keys, bans and overrides"),
        table("limit-tokens", ["model", "input", "cached", "output", "cost"]),
        table("limit-bans", ["banned key", "until", "bans in a row", "lift"]),
        table("limit-overrides", ["override of", "gets", "until", "remove"]),
        element("div", { class: "limit-keys" }),
      ),
    );
    made.bars = new MinuteBars(bars, limit.name);
    return made;
  }

  /** The tokens that requests have used since the start, where they cost tokens, and the models that have cost most. */
  tokens(table, tokens) {
    table.hidden = !tokens;
    if (!tokens) {
      return;
    }
    const { reserved, settled, estimated, cut, models } = tokens;
    const charged = `${count(settled)} charged of ${count(reserved)} reserved`;
    setText(table.caption, `${charged} · ${count(estimated)} responses estimated · ${count(cut)} cut`);
    updateList(
      table.tBodies[0],
      models.slice(0, SHOWN_ROWS),
      ({ model }) => model,
      () => row(5, 1),
      (line, { model, input, cached, output, settled: cost }) => {
        setCells(line, [model, ...[input, cached, output, cost].map(count)]);
      },
    );
  }

  /** The keys that are banned, and why. */
  bans(table, described) {
    const bans = described?.bans ?? [];
    table.hidden = bans.length === 0;
    if (table.hidden) {
      return;
    }
    setText(table.caption, `bans ${described.ban}`);
    updateList(
      table.tBodies[0],
      bans,
      ({ key }) => key,
      ({ key }) => {
        const line = row(4, 1);
        const lift = element("button", { type: "button", "aria-label": `Lift the ban of ${key}` }, "Lift");
        lift.addEventListener("click", () => this.onLift(described.name, key, `The ban of ${key} is lifted`));
        line.cells[3].append(lift);
        return line;
      },
      (line, { key, until, times }) => setCells(line, [key, moment(Date.parse(until)), count(times)]),
    );
  }

  /** The overrides that this API has set, and when they end. */
  overrides(table, described) {
    const overrides = described?.temporary ?? [];
    table.hidden = overrides.length === 0;
    if (table.hidden) {
      return;
    }
    const more = described.temporary_overrides - overrides.length;
    setText(table.caption, more > 0 ? `overrides, and ${count(more)} that end later` : "overrides");
    updateList(
      table.tBodies[0],
      overrides,
      ({ key }) => key,
      ({ key }) => {
        const line = row(4, 1);
        const remove = element("button", { type: "button", "aria-label": `Remove the override of ${key}` }, "Remove");
        remove.addEventListener("click", () => this.onLift(described.name, key, `The override of ${key} is removed`));
        line.cells[3].append(remove);
        return line;
      },
      (line, { key, rates, exempt, block, until }) => {
        const gets = exempt ? "exempt" : block ? "blocked" : rates.join(" and ");
        setCells(line, [key, gets, moment(Date.parse(until))]);
      },
    );
  }

  /** The keys that were refused most and those that are most busy, where the gateway tells them. */
  keys(shown, described, onKey) {
    const lists = [
      ["most refused", described?.most_refused, "refused"],
      ["most busy", described?.most_busy, "requests"],
    ];
    const known = lists.filter(([, keys]) => Array.isArray(keys) && keys.length > 0);
    updateList(
      shown.querySelector(".limit-keys"),
      known,
      ([title]) => title,
      ([title, , unit]) => {
        const head = element(
          "tr",
          {},
          element("th", { scope: "col" }, title),
          element("th", { scope: "col", class: "number" }, unit),
        );
        return element(
          "table",
          {},
          element("caption", { class: "hidden" }, `Keys ${title}`),
          element("thead", {}, head),
          element("tbody"),
        );
      },
      (table, [, keys]) => {
        updateList(
          table.tBodies[0],
          keys.slice(0, SHOWN_ROWS),
          (found) => found.key,
          () => row(2, 1),
          (line, found) => {
            this.key(line.cells[0], described.name, found.key, onKey);
            setText(line.cells[1], `${found.error > 0 ? "≈ " : ""}${count(found.count)}`);
          },
        );
      },
    );
  }

  /** A key that is shown in full can be looked up. */
  key(cell, limit, key, onKey) {
    if (cell.textContent === key) {
      return;
    }
    if (!this.showsKeys) {
      cell.replaceChildren(element("span", { class: "mono" }, key));
      return;
    }
    const button = element("button", { type: "button", class: "link mono" }, key);
    button.addEventListener("click", () => onKey(limit, key));
    cell.replaceChildren(button);
  }
}

