// The form for one key of a limit: its counters, and what to do with it.

class KeyForm {
  constructor(api) {
    this.api = api;
    this.shown = null;
    byId("key-form").addEventListener("submit", (submitted) => {
      submitted.preventDefault();
      this.show(byId("key-limit").value, byId("key-key").value);
    });
    // What is shown and the buttons are about the key that was looked up.
    byId("key-form").addEventListener("input", () => this.clear());
    byId("key-reset").addEventListener("click", () => this.reset());
    byId("key-block").addEventListener("click", () => this.override({ block: true }, "It is blocked"));
    byId("key-exempt").addEventListener("click", () => this.override({ exempt: true }, "It is exempt"));
    byId("key-rates-form").addEventListener("submit", (submitted) => {
      submitted.preventDefault();
      const rates = byId("key-other")
        .value.split(",")
        .map((text) => text.trim())
        .filter((text) => text !== "");
      this.override({ rates }, `It has ${rates.join(" and ")}`);
    });
  }

  /** The limits that can be chosen. */
  limits(names) {
    byId("key-card").hidden = names.length === 0;
    updateList(
      byId("key-limit"),
      names,
      (name) => name,
      (name) => element("option", {}, name),
      () => {},
    );
  }

  /** Looks up a key that was chosen elsewhere on the page. */
  choose(limit, key) {
    byId("key-limit").value = limit;
    byId("key-key").value = key;
    byId("key-show").focus();
    this.show(limit, key);
  }

  path({ limit, key }) {
    return `/api/limits/${encodeURIComponent(limit)}/keys/${encodeURIComponent(key)}`;
  }

  async show(limit, key) {
    this.shown = { limit, key };
    this.tell(await this.api.call("GET", this.path(this.shown)), this.shown, "");
  }

  async reset() {
    const about = this.shown;
    this.tell(await this.api.call("DELETE", this.path(about)), about, "Its counters are reset, and it has no override. ");
  }

  async override(change, done) {
    const about = this.shown;
    const length = byId("key-for").selectedOptions[0].textContent;
    const answer = await this.api.call("PUT", this.path(about), { ...change, for: byId("key-for").value });
    if (!answer.ok) {
      this.tell(answer, about, "");
      return;
    }
    this.tell(await this.api.call("GET", this.path(about)), about, `${done} for ${length}. `);
  }

  /** Shows an answer about a key, unless another one was asked for meanwhile. */
  tell({ ok, body, sentence }, about, before) {
    if (this.shown !== about) {
      return;
    }
    byId("key-actions").disabled = !ok && byId("key-actions").disabled;
    if (!ok) {
      this.result(sentence, true);
      return;
    }
    byId("key-actions").disabled = false;
    this.result(`${before}${this.verdict(body)}${this.quota(body.quota)}`, false);
    const rates = body.rates ?? [];
    byId("key-rates").hidden = rates.length === 0;
    updateList(
      byId("key-rates").tBodies[0],
      rates.map((found, index) => ({ ...found, index })),
      ({ index }) => index,
      () => row(4, 1),
      (line, found) => {
        // A rate of bytes is a size.
        const amount = /^\d+\//.test(found.rate) ? count : size;
        setCells(line, [
          found.rate,
          amount(found.used),
          amount(found.remaining),
          found.reset > 0 ? span(found.reset) : "–",
        ]);
      },
    );
  }

  verdict(body) {
    if (body.exempt) {
      return "The key is exempt: its requests are not counted.";
    }
    if (body.block) {
      return "▲ The key is blocked: all its requests are refused.";
    }
    if (body.banned_until !== null) {
      return `▲ The key is banned until ${moment(Date.parse(body.banned_until))}: all its requests are refused.`;
    }
    if (body.admitted) {
      return "● The next request is admitted.";
    }
    const when = body.retry_after === null ? "" : ` A request passes in ${span(body.retry_after)}.`;
    return `▲ The next request is refused.${when}`;
  }

  /** What is cached of a source of quotas. */
  quota(quota) {
    if (!quota) {
      return "";
    }
    const age = quota.age === null ? "" : ` ${span(quota.age)} ago`;
    if (!quota.known) {
      return quota.age === null ? " Its source of quotas has given no answer that can be used." : ` Its source of quotas did not know it${age}.`;
    }
    const granted = quota.rates?.join(" and ") ?? (quota.tier ? `the tier ${quota.tier}` : quota.exempt ? "exempt" : "blocked");
    return ` Its source of quotas said${age}: ${granted}${quota.holds ? "" : ", but an override comes first"}.`;
  }

  result(text, isBad) {
    byId("key-result").replaceChildren(element("p", isBad ? { class: "bad" } : {}, text));
    if (isBad) {
      byId("key-rates").hidden = true;
    }
  }

  clear() {
    this.shown = null;
    byId("key-actions").disabled = true;
    byId("key-rates").hidden = true;
    byId("key-result").replaceChildren();
  }
}

