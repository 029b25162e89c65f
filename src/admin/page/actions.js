// The buttons that change the gateway: reload, drain. Results are announced and stay until they are closed.

class Actions {
  isReloading = false;

  constructor(api) {
    this.api = api;
    byId("reload").addEventListener("click", () => this.reload());
    byId("drain").addEventListener("click", () => {
      if (byId("state").dataset.state === "draining") {
        this.drain("DELETE", "The gateway is ready again.");
      } else {
        byId("drain-dialog").showModal();
      }
    });
    byId("drain-cancel").addEventListener("click", () => byId("drain-dialog").close());
    byId("drain-form").addEventListener("submit", (submitted) => {
      submitted.preventDefault();
      byId("drain-dialog").close();
      this.drain("POST", "The gateway is draining: /readyz answers 503.");
    });
  }

  async reload() {
    // A button that is disabled would lose the focus.
    if (this.isReloading) {
      return;
    }
    this.isReloading = true;
    this.notice("Reloading …", [], false);
    const { ok, body, sentence } = await this.api.call("POST", "/api/reload");
    this.isReloading = false;
    if (ok) {
      const warnings = body.warnings.length > 0 ? ` Warnings: ${body.warnings.length}` : "";
      this.notice(`The configuration was read again and is in force.${warnings}`, body.warnings, false);
    } else {
      this.notice(sentence, body?.problems ?? [], true);
    }
  }

  async drain(method, done) {
    const { ok, sentence } = await this.api.call(method, "/api/drain");
    this.notice(ok ? done : sentence, [], !ok);
  }

  notice(text, problems, isBad) {
    const close = element("button", { type: "button" }, "Close");
    close.addEventListener("click", () => {
      byId("notice").hidden = true;
      byId("reload").focus();
    });
    const items = problems.map(({ place, message, help }) => {
      const lines = [element("div", {}, ...(place ? [element("code", {}, place), " "] : []), message)];
      return element("li", {}, ...lines, ...(help ? [element("div", { class: "help" }, help)] : []));
    });
    const notice = byId("notice");
    notice.hidden = false;
    notice.classList.toggle("bad", isBad);
    notice.replaceChildren(
      element("div", { class: "head" }, element("span", {}, text), close),
      element("ul", {}, ...items),
    );
  }
}

