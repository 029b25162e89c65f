// Numbers, durations and times as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** A count: 12,345, from a million on 1.2M. */
const count = (number) => (number < 1e6 ? whole.format(number) : short.format(number));

/** A number per second: 0, 0.4, 12, 1,234, 56.7K. */
function rate(number) {
  if (number === null) {
    return "–";
  }
  if (number > 0 && number < 9.95) {
    return number < 0.05 ? "<0.1" : number.toFixed(1);
  }
  return number < 1e5 ? whole.format(number) : short.format(number);
}

/** A part of a whole as a percentage. */
function share(part, all) {
  if (!all) {
    return "–";
  }
  const percent = (100 * part) / all;
  if (percent > 0 && percent < 0.05) {
    return "<0.1 %";
  }
  return `${percent.toFixed(percent > 0 && percent < 9.95 ? 1 : 0)} %`;
}

/** A duration in seconds as one number with a unit: 250 µs, 1.2 ms, 3 s. */
function latency(seconds) {
  if (seconds === null || seconds === undefined) {
    return "–";
  }
  const [number, unit] = seconds < 1e-3 ? [seconds * 1e6, "µs"] : seconds < 1 ? [seconds * 1e3, "ms"] : [seconds, "s"];
  return `${number < 9.95 && unit !== "µs" ? number.toFixed(1) : Math.round(number)} ${unit}`;
}

/** A duration in seconds, in its two largest units: 3 d 4 h. */
function span(seconds) {
  const units = [
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
    [1, "s"],
  ];
  const first = Math.max(
    0,
    units.findIndex(([length]) => seconds >= length),
  );
  const parts = [];
  let left = seconds < 1 ? 0 : seconds;
  for (const [length, unit] of left === 0 ? [[1, "s"]] : units.slice(first, first + 2)) {
    parts.push(`${Math.floor(left / length)} ${unit}`);
    left %= length;
  }
  return parts.join(" ");
}

/** A size in bytes: 12 KiB. */
function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(bytes, 1)) / 10));
  const number = bytes / 1024 ** power;
  return `${number < 9.95 && power > 0 ? number.toFixed(1) : Math.round(number)} ${units[power]}`;
}

/** The time of day. */
function clock(milliseconds) {
  return new Date(milliseconds).toLocaleTimeString("en", { hour12: false });
}

/** The time of day, with the date if it is not today. */
function moment(milliseconds) {
  const date = new Date(milliseconds);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? clock(milliseconds) : `${date.toLocaleDateString("en-CA")} ${clock(milliseconds)}`;
}

