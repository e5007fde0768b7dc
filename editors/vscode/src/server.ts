// The language server: `tunecast lsp`, one for the window.
import * as vscode from 'vscode'
import { CloseAction, ErrorAction, ExecuteCommandRequest, LanguageClient, State, type DynamicFeature, type StaticFeature } from 'vscode-languageclient/node'
import type { Tunecast } from './find'
import type { Lines, TraceLines } from './lines'
import type { Result } from './results'

export const LANGUAGES = ['yaml', 'toml', 'json', 'jsonc', 'python']

/** The server's commands are registered by the extension, which has them also while there is no server. */
class Client extends LanguageClient {
  override registerFeature(feature: StaticFeature | DynamicFeature<unknown>): void {
    const own = 'registrationType' in feature && feature.registrationType.method === ExecuteCommandRequest.method
    super.registerFeature(own ? { ...ANNOUNCED } : feature)
  }
}

const ANNOUNCED: StaticFeature = {
  fillClientCapabilities: (capabilities) => void ((capabilities.workspace ??= {}).executeCommand = { dynamicRegistration: false }),
  initialize: () => undefined,
  getState: () => ({ kind: 'static' }),
  clear: () => undefined,
}

const MOST_RESTARTS = 3

export class Server {
  private constructor(private readonly client: LanguageClient) {}

  static async start(tunecast: Tunecast, lines: Lines, log: vscode.OutputChannel): Promise<Server> {
    const [command, ...given] = [...tunecast.words, 'lsp']
    let started = false
    let ended = 0
    const client = new Client(
      'tunecast',
      'tunecast',
      { command: command!, args: given },
      {
        documentSelector: LANGUAGES.map((language) => ({ scheme: 'file', language })),
        initializationOptions: { showResults: false },
        synchronize: { configurationSection: 'tunecast' },
        outputChannel: log,
        // a script's hints are the lines of its trace, which stand there by decorations, with bars
        middleware: { provideInlayHints: (document, range, token, next) => (document.languageId === 'python' ? [] : next(document, range, token)) },
        initializationFailedHandler: () => false,
        errorHandler: {
          error: () => ({ action: ErrorAction.Continue }),
          closed: () => {
            if (!started) return { action: CloseAction.DoNotRestart, handled: true }
            if (++ended <= MOST_RESTARTS) return { action: CloseAction.Restart }
            return { action: CloseAction.DoNotRestart, message: `tunecast lsp ended ${ended} times and is not started again. Its output says why; to fix: tunecast: Restart the language server` }
          },
        },
      },
    )
    client.onNotification('tunecast/traceLines', (found: TraceLines) => lines.show(found))
    await client.start()
    started = true
    return new Server(client)
  }

  ask(command: string, uri: vscode.Uri, token: vscode.CancellationToken): Promise<Result | null> {
    const given = { command, arguments: [this.client.code2ProtocolConverter.asUri(uri)] }
    return this.client.sendRequest(ExecuteCommandRequest.type, given, token) as Promise<Result | null>
  }

  async stop(): Promise<void> {
    if (this.client.state === State.Running) await this.client.dispose()
  }
}
