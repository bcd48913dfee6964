// Waits for a lock by NOTIFY over one RESP3 connection: requests, replies and messages share it.
//
// Usage: node notify.js port key counter times. Adds one to the counter so often, each time under the lock.

import { randomUUID } from 'node:crypto';
import { createClient, ErrorReply } from 'redis';

const TTL_MS = 10_000;
const ASK_AGAIN_MS = 1_000;

// For one task at a time. The token outlives the connection: a task that reconnects is the same owner.
class Lock {
  constructor(client, key) {
    Object.assign(this, { client, key, token: randomUUID(), heard: new Map() });
    // Others may list the name, but not guess a tag. The braces put the channel into the slot of the key.
    this.channel = `{${key}}:${randomUUID()}`;
  }

  // Resolves when the server has confirmed. After a lost connection the library subscribes again by itself.
  async subscribe() {
    await this.client.sSubscribe(this.channel, (message) => {
      const [result, tag] = message.split(' ');
      this.heard.get(tag)?.(result);
    });
  }

  // The fence, or 0 when the time was not enough.
  async acquire(waitMs) {
    const end = Date.now() + waitMs;
    const tag = randomUUID(); // known before anything is sent
    for (let left = waitMs; left > 0; left = end - Date.now()) {
      const told = new Promise((resolve) => {
        this.heard.set(tag, resolve);
        setTimeout(resolve, Math.min(left, ASK_AGAIN_MS), '').unref();
      });
      try {
        // Asked again with the same token it keeps its place, and who holds by now gets the fence.
        const notify = ['WAIT', String(left), 'NOTIFY', this.channel, tag];
        const fence = await this.client.sendCommand(['SLOCK.LOCK', this.key, this.token, String(TTL_MS), ...notify]);
        if (fence) return fence;
      } catch (error) {
        // Lost the connection, or not yet subscribed again.
        if (error instanceof ErrorReply && !error.message.startsWith('NOSUBSCRIBER')) throw error;
      }
      const result = await told;
      if (Number(result) > 0) return Number(result);
      if (result.startsWith('-') && result !== '-UNBLOCKED') throw new Error(result.slice(1));
    }
    await insist(this.client, 'SLOCK.CANCEL', this.key, this.token);
    await this.release(); // it may have been granted just before
    return 0;
  }

  release() {
    this.heard.clear();
    return insist(this.client, 'SLOCK.UNLOCK', this.key, this.token);
  }
}

// A command that may be sent twice, when the connection was lost before its reply.
async function insist(client, ...command) {
  for (let tries = 1; ; tries += 1) {
    try {
      return await client.sendCommand(command);
    } catch (error) {
      if (tries === 5 || error instanceof ErrorReply) throw error;
    }
  }
}

const [port, key, counter, times] = process.argv.slice(2);
const client = createClient({ url: `redis://127.0.0.1:${port}`, RESP: 3 });
client.on('error', () => {}); // the library connects again
await client.connect();
const lock = new Lock(client, key);
await lock.subscribe();
for (let turn = 0; turn < Number(times); turn += 1) {
  if (!(await lock.acquire(60_000))) throw new Error('the lock was not to be had');
  const value = Number((await insist(client, 'GET', counter)) ?? 0);
  await insist(client, 'SET', counter, String(value + 1));
  await lock.release();
}
client.destroy();
