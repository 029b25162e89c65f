// Requests to the gateway: with the token if it asks for one, and a sentence for each failure.

const STORED_TOKEN = "gateway-token";
/** If there is no event for so many milliseconds, the gateway is away. */
const SILENCE = 5_000;
/** The pauses before the stream is asked for again, in milliseconds. */
const PAUSES = [0, 1_000, 2_000, 5_000];
/** A page that nobody sees for so many milliseconds gives up its stream, since there are few. */
const UNSEEN = 60_000;

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

/** A token that the user was asked for. Storage may be forbidden; then it lasts until the page is loaded again. */
class Token {
  value = "";

  constructor() {
    try {
      this.value = sessionStorage.getItem(STORED_TOKEN) ?? "";
    } catch {
      // As without a token.
    }
  }

  set(value) {
    this.value = value;
    try {
      sessionStorage.setItem(STORED_TOKEN, value);
    } catch {
      // It is in memory.
    }
  }

  headers() {
    return this.value === "" ? {} : { authorization: `Bearer ${this.value}` };
  }
}

/** Shows the form for the token until the gateway accepts one. */
class TokenForm {
  waiting = null;

  constructor(token) {
    this.token = token;
    this.dialog = byId("token-dialog");
    byId("token-form").addEventListener("submit", (submitted) => {
      submitted.preventDefault();
      this.token.set(byId("token").value.trim());
      byId("token").value = "";
      this.dialog.close("sent");
    });
    // There is nothing to see without a token.
    this.dialog.addEventListener("cancel", (cancelled) => cancelled.preventDefault());
    this.dialog.addEventListener("close", () => {
      this.done?.();
      this.waiting = null;
    });
  }

  /** Asks for another token than `tried`, once for all requests that wait for it. */
  async ask(tried) {
    if (this.token.value !== tried) {
      return;
    }
    if (!this.waiting) {
      setText(byId("token-problem"), tried === "" ? "" : "The gateway does not accept this token.");
      this.waiting = new Promise((done) => (this.done = done));
      this.dialog.showModal();
    }
    await this.waiting;
  }
}

class Api {
  constructor() {
    this.token = new Token();
    this.form = new TokenForm(this.token);
  }

  /** Sends a request and asks for the token if it is wanted. The body of the response is not read yet. */
  async send(path, options = {}) {
    for (;;) {
      const tried = this.token.value;
      const response = await fetch(path, {
        cache: "no-store",
        redirect: "error",
        ...options,
        headers: this.token.headers(),
      });
      if (response.status !== 401) {
        return response;
      }
      await this.form.ask(tried);
    }
  }

  /** What the gateway answers: `{ ok, body, sentence }`, where the sentence says why it is not ok. */
  async call(method, path, sent) {
    try {
      const response = await this.send(path, { method, body: sent && JSON.stringify(sent) });
      const body = await response.json().catch(() => null);
      const sentence = body?.detail ?? `The gateway answered with status ${response.status}.`;
      return { ok: response.ok, body, sentence };
    } catch {
      return { ok: false, body: null, sentence: "The gateway does not answer." };
    }
  }
}

/** The stream of events. It is asked for again whenever it ends; `onAway` gets a sentence, or none if there is none. */
class EventStream {
  failures = 0;
  aborting = null;

  constructor(api, onEvent, onAway) {
    Object.assign(this, { api, onEvent, onAway });
    document.addEventListener("visibilitychange", () => this.seen());
  }

  async run() {
    this.seen();
    for (;;) {
      await this.visible();
      try {
        const sentence = await this.follow();
        if (sentence !== null) {
          this.failures += 1;
          this.onAway(sentence);
        }
      } catch {
        this.failures += 1;
        this.onAway("");
      }
      await pause(PAUSES[Math.min(this.failures, PAUSES.length - 1)]);
    }
  }

  /** Follows one stream to its end. Returns the gateway's sentence if it gives none. */
  async follow() {
    this.aborting = new AbortController();
    let timer = 0;
    const alive = () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.aborting.abort(), SILENCE);
    };
    alive();
    try {
      const response = await this.api.send("/api/events", { signal: this.aborting.signal });
      if (!response.ok) {
        return (await response.json().catch(() => null))?.detail ?? "";
      }
      let text = "";
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) {
          return null;
        }
        alive();
        const events = (text + value).split("\n\n");
        text = events.pop();
        events.forEach((event) => this.take(event));
        this.failures = 0;
      }
    } finally {
      clearTimeout(timer);
    }
  }

  take(text) {
    const field = (line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)];
    const fields = new Map(text.split("\n").map(field));
    if (fields.has("data")) {
      this.onEvent(fields.get("event"), JSON.parse(fields.get("data")));
    }
  }

  /** Gives up the stream of a page that was not seen for long. */
  seen() {
    clearTimeout(this.unseen);
    if (document.hidden) {
      this.unseen = setTimeout(() => this.aborting?.abort(), UNSEEN);
    } else {
      this.resume?.();
    }
  }

  async visible() {
    while (document.hidden && this.failures > 0) {
      await new Promise((done) => (this.resume = done));
    }
  }
}

