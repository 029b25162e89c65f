// What the gateway has counted over time. Counters only grow, so rates are differences between two readings, and a reading
// that was missed changes nothing.

/** The outcomes of requests, as they are drawn: those of a group together. */
const GROUPS = [
  { id: "served", outcomes: ["forwarded", "responded", "tunneled"], name: "served" },
  { id: "limited", outcomes: ["limited", "silenced"], name: "over a limit" },
  { id: "refused", outcomes: ["blocked", "refused", "unrouted"], name: "refused" },
  { id: "failed", outcomes: ["failed", "unavailable", "shed"], name: "failed" },
  { id: "abandoned", outcomes: ["abandoned"], name: "abandoned" },
];

/** What the chart shows, in milliseconds. */
const SHOWN = 300_000;
/** How many samples a point of the chart is a mean of. There is one each second. */
const SMOOTHED = 3;
/** Rates that are written as numbers are means of so many milliseconds. */
const RECENT = 5_000;
/** Quantiles are those of so many milliseconds. */
const QUANTILES_OF = 30_000;

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
const totalOf = (requests, group) => sum(group.outcomes.map((outcome) => requests[outcome] ?? 0));

/** The requests by group over the last minutes. */
class Requests {
  samples = [];

  /** Replaces everything by the history of the gateway. */
  load({ times_ms: times, requests }) {
    const at = (index) => Object.fromEntries(Object.entries(requests).map(([name, totals]) => [name, totals[index]]));
    this.samples = times.map((time, index) => this.sample(time, at(index)));
  }

  add({ time_ms: time, requests }) {
    const last = this.samples.at(-1);
    if (last && time <= last.time) {
      return;
    }
    const next = this.sample(time, requests);
    if (last && next.totals.some((total, index) => total < last.totals[index])) {
      // Another process has begun to count.
      this.samples = [];
    }
    this.samples.push(next);
    this.samples = this.samples.filter((sample) => sample.time > time - SHOWN - 2_000);
  }

  sample(time, requests) {
    return { time, totals: GROUPS.map((group) => totalOf(requests, group)) };
  }

  /** For each group, the requests per second of the last seconds; `null` if nothing is known yet. */
  recent() {
    const last = this.samples.at(-1);
    const first = this.samples.find((sample) => sample.time >= last?.time - RECENT - 500);
    const seconds = (last?.time - first?.time) / 1000;
    return GROUPS.map((_, index) => (seconds > 0 ? (last.totals[index] - first.totals[index]) / seconds : null));
  }

  /** For each sample, the requests per second of each group, as means of `SMOOTHED` samples. */
  points() {
    return this.samples.slice(1).map((sample, index) => {
      const before = this.samples[Math.max(0, index + 1 - SMOOTHED)];
      const seconds = Math.max(0.2, (sample.time - before.time) / 1000);
      return {
        time: sample.time,
        rates: sample.totals.map((total, group) => Math.max(0, total - before.totals[group]) / seconds),
      };
    });
  }
}

/** The last readings of all numbers, for rates of other counters. */
class Readings {
  all = [];

  add(numbers) {
    const last = this.all.at(-1);
    if (last && (numbers.time_ms <= last.time_ms || numbers.uptime_seconds < last.uptime_seconds)) {
      this.all = [];
    }
    this.all.push(numbers);
    this.all = this.all.filter((reading) => reading.time_ms > numbers.time_ms - QUANTILES_OF - 500);
  }

  /** By how much what `read` returns has grown in the last `milliseconds`, with the seconds in between. */
  growth(read, milliseconds) {
    const last = this.all.at(-1);
    const first = this.all.find((reading) => reading.time_ms >= last.time_ms - milliseconds - 500);
    const [now, before] = [read(last), read(first)];
    const seconds = (last.time_ms - first.time_ms) / 1000;
    return now === undefined || before === undefined || seconds <= 0 ? null : { now, before, seconds };
  }

  /** How much a counter grows in a second; `null` if nothing is known yet. */
  rate(read) {
    const found = this.growth(read, RECENT);
    return found && Math.max(0, found.now - found.before) / found.seconds;
  }

  /** The quantiles of a histogram's last durations in seconds, rounded up to its bounds; `null` if there are none. */
  quantiles(read, wanted) {
    const found = this.growth(read, QUANTILES_OF);
    const counts = found
      ? found.now.counts.map((number, index) => Math.max(0, number - found.before.counts[index]))
      : [];
    const all = sum(counts);
    return wanted.map((quantile) => {
      let seen = 0;
      const index = counts.findIndex((number) => (seen += number) > 0 && seen >= quantile * all);
      return all === 0 ? null : interpolated(found.now.bounds, counts, index, quantile * all);
    });
  }
}

/** Where the wanted number of durations is reached inside a bucket, as if they were spread evenly there. */
function interpolated(bounds, counts, index, wanted) {
  const below = sum(counts.slice(0, index));
  const from = index === 0 ? 0 : bounds[index - 1];
  const to = bounds[Math.min(index, bounds.length - 1)];
  return from + (to - from) * Math.min(1, (wanted - below) / counts[index]);
}

