// Many tasks add to one number, which is read and written under the lock. No addition is lost.
//
// node counter.mjs 6379 1000

import {createClient} from "redis";
import {Locks} from "slock-client";

const [port = "6379", additions = "1000"] = process.argv.slice(2);
const client = await createClient({socket: {port: Number(port)}}).connect();
const locks = new Locks(client);
await client.del("example:counter");

async function add() {
  await locks.write("example:counter:lock").run(async () => {
    const number = Number(await client.get("example:counter"));
    await client.set("example:counter", String(number + 1));
  });
}

await Promise.all(Array.from({length: Number(additions)}, add));
console.log(`${await client.get("example:counter")} of ${additions}`);
client.destroy();
