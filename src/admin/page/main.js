// Puts the page together: events of the stream go to the panels.

/** How often rates and keys of limits are asked for, in milliseconds. */
const DESCRIBED_EVERY = 10_000;

const api = new Api();
const requests = new Requests();
const readings = new Readings();
const header = new Header();
const tiles = new Tiles();
const chart = new RequestsChart(byId("requests-chart"));
const requestsTable = new RequestsTable();
const limits = new Limits(lift);
const routes = new Routes();
const upstreams = new Upstreams();
const store = new Store();
const reloads = new Reloads();
const certificates = new Certificates();
const configuration = new Configuration();
const keyForm = new KeyForm(api);
const actions = new Actions(api);

/** The configuration in force, and which one it is: of which process, after how many reloads. */
let config = null;
let asked = null;
let describedAt = 0;

function onEvent(name, value) {
  if (name === "history") {
    requests.load(value);
    limits.load(value);
  } else if (name === "numbers") {
    show(value);
  }
}

function show(numbers) {
  requests.add(numbers);
  readings.add(numbers);
  header.show(numbers);
  tiles.show(numbers, requests, readings);
  chart.draw(requests);
  requestsTable.show(numbers, requests);
  limits.show(numbers, readings, (limit, key) => keyForm.choose(limit, key));
  routes.show(numbers, readings);
  upstreams.show(numbers, readings);
  store.show(numbers, readings);
  reloads.show(numbers);
  certificates.show(numbers);
  const version = `${numbers.started} ${numbers.reloads.ok} ${numbers.certificates.ok}`;
  if (asked !== version || Date.now() - describedAt > DESCRIBED_EVERY) {
    describe(version);
  }
}

/** Lifts the ban of a key or removes its override, and shows which are left. `done` says what has happened then. */
async function lift(limit, key, done) {
  const { ok, sentence } = await api.call("DELETE", keyForm.path({ limit, key }));
  actions.notice(ok ? `${done}, and its counters are reset.` : sentence, [], !ok);
  describe(asked);
}

/** Asks for what the events do not have: the rates and keys of limits, and after a reload the configuration. */
async function describe(version) {
  describedAt = Date.now();
  if (asked !== version) {
    asked = version;
    const answer = await api.call("GET", "/api/config");
    configuration.problem(answer.ok ? "" : answer.sentence);
    if (answer.ok) {
      config = answer.body;
      configuration.show(config);
      keyForm.limits(Object.keys(config.limits));
    } else {
      asked = null;
    }
  }
  const answer = await api.call("GET", "/api/limits");
  if (answer.ok) {
    limits.describe(answer.body.limits, config);
  }
}

new EventStream(api, onEvent, (sentence) => header.away(sentence)).run();

