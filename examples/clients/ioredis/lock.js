// A lock by ioredis: wait, work and release; give up a wait; look.
//
// Usage: node lock.js port key work counter | try counter | give-up | info
// Work adds one to the counter; try does so only if the lock is free. A wait is given up when standard input ends.

import { randomUUID } from 'node:crypto';
import Redis from 'ioredis';

const TTL_MS = 30_000;
const WAIT_MS = 60_000;
const REFUSE_MS = 120_000;

const [port, key, task, counter] = process.argv.slice(2);
const commands = new Redis({ port: Number(port), replyMapping: 'resp3' });

// The fence, or 0 when the wait is over. When it throws, neither a hold nor a request is left.
async function acquire(key, token, signal) {
  signal?.throwIfAborted();
  // For this wait and nothing else. It does not connect again, and so asks once.
  const waiting = commands.duplicate({ retryStrategy: null, socketTimeout: WAIT_MS + 5_000 });
  waiting.on('error', () => {}); // the command has the error too
  // ioredis cannot take back what it has sent. So the server has to end the wait.
  const abort = () => end(key, token).catch(() => {});
  signal?.addEventListener('abort', abort);
  try {
    const fence = await waiting.call('SLOCK.LOCK', key, token, TTL_MS, 'WAIT', WAIT_MS);
    signal?.throwIfAborted();
    return fence;
  } catch (error) {
    await end(key, token);
    throw signal?.aborted ? signal.reason : error;
  } finally {
    signal?.removeEventListener('abort', abort);
    waiting.disconnect();
  }
}

// The fence, or 0 at once when another owner holds or waits. When it throws, nothing is left.
async function tryAcquire(key, token) {
  try {
    return await commands.call('SLOCK.LOCK', key, token, TTL_MS);
  } catch (error) {
    await end(key, token);
    throw error;
  }
}

// Leaves neither a hold nor a request. One that is still on its way is refused when it arrives.
async function end(key, token) {
  await commands.call('SLOCK.MUNLOCK', 1, key, token, 'REFUSE', REFUSE_MS);
}

const release = (key, token) => commands.call('SLOCK.UNLOCK', key, token);

async function work() {
  const token = randomUUID();
  if (!(await acquire(key, token))) throw new Error('the wait is over');
  await addAndRelease(token);
}

async function tryToWork() {
  const token = randomUUID();
  if (!(await tryAcquire(key, token))) return 'busy';
  await addAndRelease(token);
  return 'done';
}

async function addAndRelease(token) {
  try {
    await commands.set(counter, Number(await commands.get(counter)) + 1);
  } finally {
    await release(key, token);
  }
}

async function waitUntilTheInputEnds() {
  const controller = new AbortController();
  process.stdin.resume().once('end', () => controller.abort());
  try {
    await acquire(key, randomUUID(), controller.signal);
  } catch (error) {
    if (error !== controller.signal.reason) throw error;
    return;
  }
  throw new Error('not given up');
}

// The mode, the fence and the tokens of the holders.
async function info() {
  const lock = await commands.call('SLOCK.INFO', key, 'FULL');
  if (lock === null) return 'nobody';
  return `${lock.mode} ${lock.fence} ${lock.holders.map((holder) => holder.token)}`;
}

if (task === 'work') await work();
if (task === 'try') console.log(await tryToWork());
if (task === 'give-up') await waitUntilTheInputEnds();
if (task === 'info') console.log(await info());
commands.disconnect();
