// Charts as SVG. Each says in words what it shows.

/** The units of the chart's coordinates; the page stretches them. */
const WIDE = 1000;
const HIGH = 100;
const MINUTES = 60;

/** The next number of the form 1, 2 or 5 times a power of ten. */
function ceiling(number) {
  const power = 10 ** Math.floor(Math.log10(Math.max(number, 1)));
  return power * ([1, 2, 5].find((step) => step * power >= number) ?? 10);
}

/** The requests per second by group, one above the other. */
class RequestsChart {
  constructor(place) {
    const lines = [0, 0.5, 1].map((part) =>
      shape("line", { class: "grid", x1: 0, x2: WIDE, y1: HIGH * part, y2: HIGH * part }),
    );
    this.areas = GROUPS.map((group) => shape("path", { class: `area ${group.id}` }));
    this.lines = GROUPS.map((group) => shape("path", { class: `line ${group.id}` }));
    this.image = shape(
      "svg",
      { role: "img", viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", "aria-label": "No requests yet." },
      ...lines,
      ...this.areas,
      ...this.lines,
    );
    // The lower edge of the labels' box is below the chart.
    this.labels = [0, 0.5, 1].map((part) => {
      const label = element("span", { class: "y", "aria-hidden": "true" });
      label.style.top = `calc((100% - 1.4rem) * ${1 - part})`;
      return label;
    });
    const times = ["5 min ago", "4", "3", "2", "1", "now"].map((text) => element("span", {}, text));
    place.append(this.image, ...this.labels, element("div", { class: "x", "aria-hidden": "true" }, ...times));
  }

  draw(requests) {
    const points = requests.points();
    const end = requests.samples.at(-1)?.time ?? 0;
    const most = ceiling(Math.max(0, ...points.map((point) => sum(point.rates))));
    this.labels.forEach((label, index) => setText(label, rate((most * index) / 2)));
    const x = (time) => (WIDE * (1 - (end - time) / SHOWN)).toFixed(1);
    const y = (number) => (HIGH * (1 - number / most)).toFixed(2);
    let below = points.map(() => 0);
    this.areas.forEach((area, group) => {
      const above = points.map((point, index) => below[index] + point.rates[group]);
      const isEmpty = points.every((point) => point.rates[group] === 0);
      const upper = points.map((point, index) => `${x(point.time)} ${y(above[index])}`);
      const lower = points.map((point, index) => `${x(point.time)} ${y(below[index])}`).reverse();
      setAttribute(area, "d", isEmpty ? "" : `M${upper.join("L")}L${lower.join("L")}Z`);
      setAttribute(this.lines[group], "d", isEmpty ? "" : `M${upper.join("L")}`);
      below = above;
    });
    const now = requests.recent();
    const words = GROUPS.map((group, index) => `${rate(now[index])} ${group.name}`);
    const label = `Requests per second over the last 5 minutes, at most ${rate(most)}. Now: ${words.join(", ")}.`;
    setAttribute(this.image, "aria-label", label);
  }
}

/** The refusals of one limit in each of the last 60 minutes. */
class MinuteBars {
  constructor(place, name) {
    this.name = name;
    this.bars = shape("path");
    this.image = shape(
      "svg",
      { role: "img", viewBox: `0 0 ${MINUTES} ${HIGH}`, preserveAspectRatio: "none" },
      this.bars,
    );
    this.most = element("span", { class: "most", "aria-hidden": "true" });
    place.append(this.image, this.most);
  }

  draw(minutes) {
    const most = Math.max(...minutes);
    const bar = (number, index) => {
      const height = number === 0 ? 0 : Math.max(3, (HIGH * number) / most);
      return number === 0 ? "" : `M${index + 0.1} ${HIGH}v${-height.toFixed(1)}h.8V${HIGH}z`;
    };
    setAttribute(this.bars, "d", minutes.map(bar).join(""));
    setText(this.most, most === 0 ? "none" : `at most ${count(most)} a minute`);
    const words = `${count(sum(minutes))} in all, at most ${count(most)} in a minute, ${count(minutes.at(-1))} in this one`;
    setAttribute(this.image, "aria-label", `Refusals of ${this.name} in each minute of the last hour: ${words}.`);
  }
}

