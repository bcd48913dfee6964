// The end of an acquisition in doubt, or that is given up: a pipeline that leaves nothing of it on the server, repeated
// whole until it is answered.

import type {Answer} from "./answers.js";
import {now, settlesWithin} from "./clock.js";
import {REFUSE_MS, type Command, type Key} from "./commands.js";
import {textOf} from "./errors.js";
import type {Shared} from "./shared.js";

/** How long the caller waits for it, in ms. Then it goes on in the background. */
export const CALLER_WAITS_MS = 300;

// One attempt takes at most so long, in ms.
const ATTEMPT_MS = 1_000;

// So many are under way at most. Those that come then are left to their ttl.
const MOST_UNDER_WAY = 10_000;

/**
 * Sends the commands until all are answered, in the background. The answers; none when that takes longer than the caller
 * waits. `then` is called with the answers when there are some, or with none when it has ended without.
 */
export async function giveUp(
  shared: Shared,
  names: string,
  key: Key,
  commands: readonly Command[],
  callerWaitsMs: number,
  then: (answers: Answer[]) => void = () => {},
): Promise<Answer[]> {
  if (shared.givingUp.size >= MOST_UNDER_WAY) {
    shared.reporter.warn(`${names}: too much is being given up: what is left ends by its ttl`);
    then([]);
    return [];
  }
  let answers: Answer[] = [];
  const work = async (): Promise<void> => {
    try {
      answers = (await shared.repeat(names, key, commands, now() + REFUSE_MS, ATTEMPT_MS)).answers;
    } catch (error) {
      shared.reporter.warn(`${textOf(error)}: what is left ends by its ttl`);
    }
    then(answers);
  };
  const done = work().finally(() => shared.givingUp.delete(done));
  shared.givingUp.add(done);
  if (callerWaitsMs > 0) await settlesWithin(done, callerWaitsMs);
  return answers;
}
