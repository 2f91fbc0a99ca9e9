// The model of replay.py, work.py, layout.py and predict.py, for the page. A test holds both to the
// same numbers: change one, change the other.
"use strict";

const EPSILON = 1e-12;
const LANES = 3, GLOO_THREADS = 2;
const CHUNK = 1 << 20, FIRST_NBYTES = 1 << 20, BUCKET_NBYTES = 25 << 20;
const MOST_BUCKETS = 32, MOST_JOBS = 64, FORWARD = 1 / 3;

/** What nobody gets more of, so that all get what they want or the cores are used up. */
function level(demands, cores) {
  if (demands.reduce((sum, each) => sum + each, 0) <= cores) return 1;
  let left = cores, found = 0;
  const wanting = demands.slice().sort((a, b) => a - b);
  for (let place = 0; place < wanting.length; place++) {
    found = left / (wanting.length - place);
    if (wanting[place] > found) return found;
    left -= wanting[place];
  }
  return found;
}

/** `total` cores to threads in their order: each gets as much as it can use. */
function dealtOut(total, count) {
  return Array.from({length: count}, (_, i) => Math.max(0, Math.min(1, total - i)));
}

/** One step: `buckets` of {compute, jobs}, jobs of stages {cpu, wait, nbytes, perByte, inTurn}. */
function replay(buckets, rate, cores, lanes, dealt) {
  const shared = [];
  const crew = Array.from({length: lanes}, () => ({
    queue: dealt ? [] : shared, job: null, at: 0, number: 0,
    cpu: 0, wait: 0, left: 0, perByte: 0, inTurn: false,
  }));
  let now = 0, computeEnd = 0, bucket = 0, jobs = 0, over = 0, next = 0;
  let main = buckets.length ? buckets[0].compute : 0;
  const ended = new Set();
  const endTurn = (number) => { ended.add(number); while (ended.has(over)) over++; };

  const begin = (lane) => {
    if (lane.job === null) {
      if (!lane.queue.length) return false;
      const taken = lane.queue.shift();
      lane.number = taken.number; lane.job = taken.job; lane.at = 0; lane.inTurn = false;
    } else if (lane.cpu > EPSILON || lane.wait > EPSILON || lane.left > EPSILON) return false;
    if (lane.inTurn) { endTurn(lane.number); lane.inTurn = false; }
    if (lane.at === lane.job.length) { endTurn(lane.number); lane.job = null; return true; }
    const stage = lane.job[lane.at];
    if (stage.inTurn && over < lane.number) return false;
    lane.at++;
    lane.cpu = stage.cpu; lane.wait = stage.wait;
    lane.left = rate === Infinity ? 0 : stage.nbytes;
    lane.perByte = stage.perByte; lane.inTurn = stage.inTurn;
    return true;
  };

  const settle = () => {
    for (let moved = true; moved;) {
      moved = false;
      while (main <= EPSILON && bucket < buckets.length) {
        for (const job of buckets[bucket].jobs) {
          crew[next].queue.push({number: jobs++, job});
          next = (next + 1) % lanes;
        }
        bucket++;
        computeEnd = now;
        if (bucket < buckets.length) main = buckets[bucket].compute;
        moved = true;
      }
      for (const lane of crew) moved = begin(lane) || moved;
    }
    return main > EPSILON || crew.some((lane) => lane.job !== null);
  };

  while (settle()) {
    const threads = crew.filter((lane) => lane.job !== null && lane.cpu > EPSILON)
      .sort((a, b) => a.number - b.number);
    const others = crew.filter((lane) => lane.job !== null && lane.cpu <= EPSILON);
    const waiting = others.filter((lane) => lane.wait > EPSILON);
    const sending = others.filter((lane) => lane.wait <= EPSILON && lane.left > EPSILON);
    const share = sending.length ? rate / sending.length : 0;
    const computing = main > EPSILON ? 1 : 0;
    const demands = Array(threads.length + computing).fill(1)
      .concat(sending.map((lane) => Math.min(1, lane.perByte * share)));
    const pace = Math.min(1, level(demands, cores));
    const speeds = sending.map(
      (lane) => lane.perByte ? Math.min(share, pace / lane.perByte) : share);
    const paces = dealtOut(pace * threads.length, threads.length);
    let dt = Infinity;
    threads.forEach((lane, i) => { if (paces[i] > 0) dt = Math.min(dt, lane.cpu / paces[i]); });
    if (computing) dt = Math.min(dt, main / pace);
    for (const lane of waiting) dt = Math.min(dt, lane.wait);
    sending.forEach((lane, i) => { dt = Math.min(dt, lane.left / speeds[i]); });
    now += dt;
    threads.forEach((lane, i) => { lane.cpu -= dt * paces[i]; });
    if (computing) main -= dt * pace;
    for (const lane of waiting) lane.wait -= dt;
    sending.forEach((lane, i) => {
      lane.left = Math.max(lane.left - dt * speeds[i], 0);
      if (lane.left < 1e-6) lane.left = 0;
    });
  }
  return {step: now, compute: computeEnd};
}

/** Latencies of collectives are multiples of that of a message; `times` has measured ones. */
function network(workers, rate, latency, cpu, times) {
  const known = times || {ring: 2 * (workers - 1), exchange: 1, gather: workers - 1};
  return {
    workers, rate, cpu, ring: known.ring * latency, share: latency,
    exchange: known.exchange * latency, gather: known.gather * latency,
  };
}

function stage(cpu, wait, nbytes, perByte, inTurn) {
  return {cpu, wait, nbytes, perByte, inTurn: Boolean(inTurn)};
}

/** A job of `values`, standing for `count`. */
function stages(work, values, count, net) {
  if (work.collective === "all_reduce") {
    return [
      stage(work.job_s * count + work.first_s * values, 0, 0, 0),
      stage(0, net.ring * count, work.first_bytes * values, net.cpu),
      stage(work.last_s * values, 0, 0, 0),
    ];
  }
  const announced = stage(0, work.announces ? net.gather * count : 0, 0, 0);
  const found = [stage(work.job_s * count, work.stall_s * count, 0, 0)];
  if (work.ask_bytes) {
    found.push(stage(work.ask_s * values, 0, 0, 0));
    found.push(stage(0, net.share * count, work.ask_bytes * values, net.cpu));
  }
  found.push(stage(work.first_s * values, 0, 0, 0), announced);
  const latency = work.middle_bytes ? net.exchange : net.share;
  found.push(stage(0, latency * count, work.first_bytes * values, net.cpu, work.in_turn));
  if (work.middle_bytes) {
    found.push(stage(work.middle_s * values, 0, 0, 0), announced);
    found.push(stage(0, net.share * count, work.middle_bytes * values, net.cpu));
  }
  found.push(stage(work.last_s * values, 0, 0, 0));
  return found;
}

/** Python's round: halves go to the even neighbour. */
function rounded(value) {
  const low = Math.floor(value);
  const rest = value - low;
  if (rest !== 0.5) return Math.round(value);
  return low % 2 === 0 ? low : low + 1;
}

/** Buckets of a model whose layers are alike: {at, values}. */
function even(params, compute) {
  const count = Math.max(1, Math.min(MOST_BUCKETS, rounded(4 * params / BUCKET_NBYTES)));
  const first = count > 1
    ? Math.min(FIRST_NBYTES / 4, Math.floor(params / (2 * count))) : params;
  const found = [];
  for (let i = 0, start = 0; i < count; i++) {
    const end = count === 1
      ? params : first + Math.floor((params - first) * i / Math.max(count - 1, 1));
    found.push({at: compute * (FORWARD + (1 - FORWARD) * end / params), values: end - start});
    start = end;
  }
  return found;
}

/** The jobs of a bucket: few, each standing for those it is made of. */
function coarse(values, workers, params) {
  const real = Math.ceil(values / (CHUNK * (workers > 2 ? workers : 1)));
  const shown = Math.max(1, Math.min(real, Math.floor(MOST_JOBS * values / Math.max(params, 1))));
  return Array(shown).fill({values: values / shown, count: real / shown});
}

/** Seconds of a step. `where` is {params, compute, workers, rate, latency, cores, cpu, times}. */
function predict(where, work) {
  const net = network(where.workers, where.rate, where.latency, where.cpu, where.times);
  const own = work.codec !== "plain DDP";
  const share = Math.min(1, where.cores);
  let before = 0;
  const buckets = even(where.params, where.compute).map((ready) => {
    const chunks = work.collective === "all_reduce"
      ? [{values: ready.values, count: 1}] : coarse(ready.values, where.workers, where.params);
    const bucket = {
      compute: (ready.at - before) * share,
      jobs: chunks.map((chunk) => stages(work, chunk.values, chunk.count, net)),
    };
    before = ready.at;
    return bucket;
  });
  return replay(buckets, where.rate, where.cores, own ? LANES : GLOO_THREADS, own).step;
}

function bytesPerValue(work) {
  return work.ask_bytes + work.first_bytes + work.middle_bytes;
}

/** The fastest codec that is worth it and whose error is bearable; null: do not compress. */
function choice(rows, worth, mostError) {
  const good = rows.filter(
    (row) => row.codec !== "none" && row.speedup >= worth && row.nmse <= mostError);
  if (!good.length) return null;
  const best = Math.min(...good.map((row) => row.step));
  const near = good.filter((row) => row.step <= best * worth);
  return near.reduce((a, b) => a.nmse < b.nmse || (a.nmse === b.nmse && a.step <= b.step) ? a : b);
}

if (typeof module !== "undefined") module.exports = {predict, choice, bytesPerValue};
