// The only place that asks the server. Every address is relative to the page: no request leaves the machine.

export class Refusal extends Error {
  constructor(message: string, readonly field: string | null, readonly code: string) {
    super(message)
  }
}
const GONE = 'the server does not answer. To fix: start tunecast serve again.'

const root = new URL('api/', document.baseURI)
let token = sessionStorage.getItem('token') ?? ''

export const hasToken = (): boolean => token !== ''
export function useToken(given: string): void {
  token = given
  sessionStorage.setItem('token', given)
}

const headers = (body: boolean): Record<string, string> => ({
  ...(body ? { 'content-type': 'application/json' } : {}),
  ...(token ? { authorization: `Bearer ${token}` } : {}),
})

async function refusal(response: Response): Promise<Refusal> {
  try {
    const { error } = await response.json()
    return new Refusal(error.message, error.field ?? null, error.code)
  } catch {
    return new Refusal(`the server answered ${response.status}`, null, String(response.status))
  }
}

async function send(path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  let response: Response
  try {
    response = await fetch(new URL(path, root), {
      method: body === undefined ? 'GET' : 'POST',
      headers: headers(body !== undefined),
      body: body === undefined ? null : JSON.stringify(body),
      signal: signal ?? null,
    })
  } catch (failure) {
    if (signal?.aborted) throw failure
    throw new Refusal(GONE, null, 'gone')
  }
  if (response.status === 401) window.dispatchEvent(new Event('token'))
  if (!response.ok) throw await refusal(response)
  return response
}

export const get = async <T>(path: string, signal?: AbortSignal): Promise<T> => (await send(path, undefined, signal)).json()
export const post = async <T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> => (await send(path, body, signal)).json()

/** A file: its name and what it holds. */
export async function file(path: string, body: unknown): Promise<{ name: string; text: string }> {
  const response = await send(path, body)
  const name = /filename="([^"]+)"/.exec(response.headers.get('content-disposition') ?? '')?.[1] ?? 'tunecast.txt'
  return { name, text: await response.text() }
}

/** Server-sent events of a POST, one after another, until the server ends them or `signal` does. */
export async function* events(path: string, body: unknown, signal: AbortSignal): AsyncGenerator<{ event: string; data: any }> {
  const response = await send(path, body, signal)
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader()
  let rest = ''
  for (;;) {
    const { done, value } = await reader.read().catch((failure) => {
      throw signal.aborted ? failure : new Refusal(GONE, null, 'gone')
    })
    if (done) return
    rest += value.replaceAll('\r\n', '\n')
    for (let end = rest.indexOf('\n\n'); end >= 0; end = rest.indexOf('\n\n')) {
      const lines = rest.slice(0, end).split('\n')
      rest = rest.slice(end + 2)
      const data = lines.filter((line) => line.startsWith('data:')).map((line) => line.slice(5).trimStart()).join('\n')
      const event = lines.find((line) => line.startsWith('event:'))?.slice(6).trim() ?? 'message'
      if (data) yield { event, data: JSON.parse(data) }
    }
  }
}

/** Asks again and again, one at a time: while an answer is awaited only the newest question is kept. `done` is told of every
 *  answer, and whether it is to the newest question: who drags a slider without a pause sees where it was a moment ago. */
export class Newest<Q, A> {
  private waiting: Q | undefined
  private busy = false
  constructor(
    private readonly ask: (question: Q) => Promise<A>,
    private readonly done: (answer: A, question: Q, isNewest: boolean) => void,
    private readonly failed: (failure: unknown) => void,
  ) {}

  put(question: Q): void {
    this.waiting = question
    if (!this.busy) void this.run()
  }

  private async run(): Promise<void> {
    this.busy = true
    while (this.waiting !== undefined) {
      const question = this.waiting
      this.waiting = undefined
      try {
        const answer = await this.ask(question)
        this.done(answer, question, this.waiting === undefined)
      } catch (failure) {
        if (this.waiting === undefined) this.failed(failure)
      }
    }
    this.busy = false
  }
}
