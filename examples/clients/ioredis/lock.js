// A lock by ioredis: wait, work and release; give up a wait; look.
//
// Usage: node lock.js port key work counter | give-up | info
// Work adds one to the counter. A wait is given up when standard input ends.

import { randomUUID } from 'node:crypto';
import { setTimeout } from 'node:timers/promises';
import Redis from 'ioredis';

const TTL_MS = 30_000;
const WAIT_MS = 60_000;

const [port, key, task, counter] = process.argv.slice(2);
const commands = new Redis({ port: Number(port), replyMapping: 'resp3' });

// The fence, or 0 when the wait is over. When it throws, neither a hold nor a request is left.
async function acquire(key, token, signal) {
  signal?.throwIfAborted();
  // For this wait and nothing else. It does not connect again, and so asks once.
  const waiting = commands.duplicate({ retryStrategy: null, socketTimeout: WAIT_MS + 5_000 });
  waiting.on('error', () => {}); // the command has the error too
  let answered = false;
  // ioredis cannot take back what it has sent. So the server has to end the wait.
  const cancel = async () => {
    while (!answered) { // SLOCK.CANCEL does not find a request that is still on its way
      await commands.call('SLOCK.CANCEL', key, token).catch(() => {});
      await setTimeout(10);
    }
  };
  signal?.addEventListener('abort', cancel);
  try {
    const request = ['SLOCK.LOCK', key, token, TTL_MS, 'WAIT', WAIT_MS];
    const fence = await waiting.call(...request).finally(() => { answered = true; });
    signal?.throwIfAborted();
    return fence;
  } catch (error) {
    await commands.call('SLOCK.CANCEL', key, token);
    await release(key, token);
    throw error;
  } finally {
    signal?.removeEventListener('abort', cancel);
    waiting.disconnect();
  }
}

const release = (key, token) => commands.call('SLOCK.UNLOCK', key, token);

async function work() {
  const token = randomUUID();
  if (!(await acquire(key, token))) throw new Error('the wait is over');
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
if (task === 'give-up') await waitUntilTheInputEnds();
if (task === 'info') console.log(await info());
commands.disconnect();
